// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/netns/registry"
)

// patience is for what the kernel frees in the background.
const patience = time.Minute

func newRegistry(t testing.TB, w registry.Walker) *registry.Registry {
	t.Helper()
	r, err := registry.New(w)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// refresh lets pass that some process of the node hides from root, too.
func refresh(t testing.TB, r *registry.Registry) {
	t.Helper()
	if err := r.Refresh(); err != nil && !errors.Is(err, netns.ErrPermission) {
		t.Fatal(err)
	}
}

// knows reports whether a namespace is known, in both ways to ask.
func knows(t testing.TB, r *registry.Registry, inode uint32) bool {
	t.Helper()
	ns, ok := r.ByInode(inode)
	if ok {
		if ns.Inode() != inode {
			t.Errorf("ByInode(%d) is %s", inode, ns)
		}
		_ = ns.Close()
	}
	if listed := slices.Contains(inodes(r), inode); listed != ok {
		t.Errorf("%d: ByInode says %t, All says %t", inode, ok, listed)
	}
	return ok
}

func inodes(r *registry.Registry) (all []uint32) {
	for _, ns := range r.All() {
		all = append(all, ns.Inode())
		_ = ns.Close()
	}
	return all
}

func TestSubscribe(t *testing.T) {
	labtest.NoLeak(t)
	p := loadertest.Load(t)
	r, s := newRegistry(t, p), newSubject(t)
	var heard []string
	var kept *netns.NS
	cancel := r.Subscribe(func(ns *netns.NS, here bool) {
		if ns.Inode() != s.Inode() {
			return
		}
		heard = append(heard, map[bool]string{true: "here", false: "gone"}[here])
		if !here {
			kept, _ = ns.Dup()
		}
	})
	end := keepers["a process"](t, s)
	_ = s.Close()
	refresh(t, r)
	refresh(t, r)
	second := 0
	defer r.Subscribe(func(ns *netns.NS, here bool) {
		if ns.Inode() == s.Inode() && here {
			second++
		}
	})()
	end()
	refresh(t, r)
	refresh(t, r)
	if got := strings.Join(heard, " "); got != "here gone" || second != 1 {
		t.Errorf("heard %q, the later one %d", got, second)
	}
	if kept == nil || s.isFreed() {
		t.Fatal("a Dup during the call does not keep it")
	}
	_ = kept.Close()
	labtest.Eventually(t, patience, s.isFreed, "the kernel frees the namespace")
	cancel()
	cancel()
}

func TestClosed(t *testing.T) {
	labtest.NoLeak(t)
	r := newRegistry(t, nil)
	refresh(t, r)
	all := r.All()
	if len(all) == 0 {
		t.Fatal("knows none")
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	for _, ns := range all {
		if ns.FD() < 0 {
			t.Errorf("%s was closed under its user", ns)
		}
		_ = ns.Close()
	}
	if err := r.Refresh(); !errors.Is(err, registry.ErrClosed) {
		t.Errorf("Refresh: %v", err)
	}
	if r.Unknown(1); len(r.All()) != 0 {
		t.Error("knows some")
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}
