// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// As long as somebody has a handle its number is not given to another one.
func TestNumberIsNotReusedWhileHeld(t *testing.T) {
	labtest.NoLeak(t)
	p := loadertest.Load(t)
	r, s := newRegistry(t, p), newSubject(t)
	end := keepers["a process"](t, s)
	_ = s.Close()
	refresh(t, r)
	held, ok := r.ByInode(s.Inode())
	if !ok {
		t.Fatal("not found")
	}
	defer held.Close()
	end()
	fresh := func() bool { // makes a namespace and says whether it has the number
		ns, err := netns.New()
		if err != nil {
			t.Fatal(err)
		}
		defer ns.Close()
		return ns.Inode() == s.Inode()
	}
	for range 30 {
		if fresh() {
			t.Fatal("the number was given again while the registry has the namespace open")
		}
	}
	refresh(t, r)
	if knows(t, r, s.Inode()) {
		t.Error("kept for a handle that it gave out")
	}
	for range 30 {
		if fresh() {
			t.Fatal("the number was given again while a user has a handle")
		}
	}
	if err := held.Do(func() error { _, err := netlink.LinkByName("inside"); return err }); err != nil {
		t.Errorf("the user's handle: %v", err)
	}
	_ = held.Close()
	labtest.Eventually(t, patience, s.isFreed, "the kernel frees the namespace")
}

// A number that is given again is a namespace like any other.
func TestReusedNumber(t *testing.T) {
	labtest.NoLeak(t)
	p := loadertest.Load(t)
	r, s := newRegistry(t, p), newSubject(t)
	end := keepers["a process"](t, s)
	_ = s.Close()
	refresh(t, r)
	end()
	refresh(t, r)
	labtest.Eventually(t, patience, s.isFreed, "the kernel frees the namespace")
	var later *netns.NS
	var others []*netns.NS
	letGo := func() {
		for _, ns := range others {
			_ = ns.Close()
		}
		others = nil
	}
	// The kernel takes the lowest number that is free: those below are held
	// meanwhile. Freeing takes its time, so that all are let go now and then.
	again := func() bool {
		if len(others) == 50 {
			letGo()
		}
		var err error
		if later, err = netns.New(); err != nil {
			t.Fatal(err)
		}
		if later.Inode() == s.Inode() {
			return true
		}
		others = append(others, later)
		return false
	}
	labtest.Eventually(t, 5*patience, again, "the number is given again")
	letGo()
	defer later.Close()
	if err := later.Do(func() error { sleeper(t); return nil }); err != nil {
		t.Fatal(err)
	}
	refresh(t, r)
	now, ok := r.ByInode(s.Inode())
	if !ok {
		t.Fatal("the later namespace is not found")
	}
	defer now.Close()
	if err := now.Do(func() error { _, err := netlink.LinkByName("inside"); return err }); err == nil {
		t.Error("the later namespace has the earlier one's device")
	}
}
