// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"slices"
	"testing"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// Each holder is told once in 200 namespaces, none is lost and none stays.
func TestTwoHundred(t *testing.T) {
	labtest.NoLeak(t)
	p := loadertest.Load(t)
	r := newRegistry(t, p)
	var made []uint32
	var ends []func()
	n := labtest.Fewer(200)
	for i := range n {
		ns := labtest.Netns(t)
		s := &subject{NS: ns}
		keep := []string{"a process", "a TCP socket", "a descriptor"}[i%3]
		ends = append(ends, keepers[keep](t, s))
		made = append(made, ns.Inode())
		_ = ns.Close()
	}
	refresh(t, r)
	t.Logf("%+v", r.Status())
	known := inodes(r)
	if !slices.IsSorted(known) || len(slices.Compact(slices.Clone(known))) != len(known) {
		t.Errorf("All = %v, want each once and in order", known)
	}
	for i, inode := range made {
		if !slices.Contains(known, inode) {
			t.Errorf("number %d is not found", i)
		}
	}
	for i, end := range ends {
		if i%2 == 0 {
			end()
		}
	}
	refresh(t, r)
	known = inodes(r)
	for i, inode := range made {
		if slices.Contains(known, inode) != (i%2 == 1) {
			t.Errorf("number %d: found %t", i, i%2 == 0)
		}
	}
	t.Logf("%+v", r.Status())
}

// More rows than one read has room for; and namespaces of other kinds are none.
func TestManyRows(t *testing.T) {
	labtest.NoLeak(t)
	p := loadertest.Load(t)
	child(t, "many", nil)
	told := make(map[int][]uint32) // by thread
	err := p.Holders(nil, func(tid, _ int, inode uint32) { told[tid] = append(told[tid], inode) })
	if err != nil {
		t.Fatal(err)
	}
	var rows []uint32 // of the child
	for _, inodes := range told {
		if len(inodes) > len(rows) {
			rows = inodes
		}
	}
	slices.Sort(rows)
	if each := len(slices.Compact(slices.Clone(rows))); len(rows) != many || each != many {
		t.Errorf("%d rows about %d namespaces, want %d, each once", len(rows), each, many)
	}
	r := newRegistry(t, p)
	s := newSubject(t)
	keepers["a descriptor"](t, s)
	refresh(t, r)
	if !knows(t, r, s.Inode()) {
		t.Error("not found among them")
	}
	if got := len(inodes(r)); got > many/2 {
		t.Errorf("%d namespaces known", got)
	}
}
