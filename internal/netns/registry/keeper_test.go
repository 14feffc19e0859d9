// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"net"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/netns/registry"
)

func TestFindsAndLetsGoWhateverKeepsIt(t *testing.T) {
	labtest.Root(t)
	p := loadertest.Load(t)
	p.LoadAll() // which holds descriptors
	for name, keep := range keepers {
		t.Run(name, func(t *testing.T) {
			labtest.NoLeak(t)
			r := newRegistry(t, p)
			s := newSubject(t)
			onOwnThread(func() { findAndLetGo(t, r, s, keep) })
		})
	}
}

func findAndLetGo(t *testing.T, r *registry.Registry, s *subject, keep func(testing.TB, *subject) func()) {
	refresh(t, r)
	if knows(t, r, s.Inode()) {
		t.Error("found where nobody but this process has it")
	}
	end := keep(t, s)
	defer end()
	_ = s.Close()
	refresh(t, r)
	ns, ok := r.ByInode(s.Inode())
	if !ok {
		t.Errorf("not found; %+v", r.Status())
		return
	}
	if err := ns.Do(func() error { _, err := netlink.LinkByName("inside"); return err }); err != nil {
		t.Errorf("inside: %v", err)
	}
	_ = ns.Close()
	refresh(t, r)
	if !knows(t, r, s.Inode()) {
		t.Error("dropped while it is in use")
	}
	end()
	if s.isFreed() {
		t.Error("freed although the registry has it open")
	}
	refresh(t, r)
	if knows(t, r, s.Inode()) {
		t.Error("kept although nobody uses it")
	}
	labtest.Eventually(t, patience, s.isFreed, "the kernel frees the namespace")
}

// Where the walks are missing /proc and the names are what there is.
func TestWithoutWalks(t *testing.T) {
	labtest.Root(t)
	for _, name := range []string{"a process", "a name"} {
		t.Run(name, func(t *testing.T) {
			labtest.NoLeak(t)
			r, s := newRegistry(t, nil), newSubject(t)
			onOwnThread(func() { findAndLetGo(t, r, s, keepers[name]) })
		})
	}
	t.Run("a TCP socket", func(t *testing.T) {
		labtest.NoLeak(t)
		r, s := newRegistry(t, nil), newSubject(t)
		keepers["a TCP socket"](t, s)
		refresh(t, r)
		if knows(t, r, s.Inode()) {
			t.Error("found: then the walks are needless")
		}
	})
}

// A holder's own descriptor is not ours to mark.
func TestLeavesTheDescriptorsOfOthersAlone(t *testing.T) {
	labtest.NoLeak(t)
	p := loadertest.Load(t)
	r, s := newRegistry(t, p), newSubject(t)
	file := s.file() // what the child has is the same open file
	defer file.Close()
	sleeper(t, file)
	refresh(t, r)
	if !knows(t, r, s.Inode()) {
		t.Fatal("not found")
	}
	flags, err := unix.FcntlInt(file.Fd(), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_APPEND != 0 {
		t.Errorf("flags %#o, %v", flags, err)
	}
}

// A descriptor opened by way of a name is no reason to keep the name's mount busy.
func TestKeepsNoMountBusy(t *testing.T) {
	labtest.NoLeak(t)
	p := loadertest.Load(t)
	r, s := newRegistry(t, p), newSubject(t)
	found := make(chan struct{}) // the name is in sight of one thread alone
	held := make(chan struct{})
	go func() {
		defer close(held)
		onOwnThread(func() {
			unmount := named(t, s)
			through, err := os.Open(s.name)
			if err != nil {
				t.Error(err)
				return
			}
			end := with(through, func(f ...*os.File) func() { return sleeper(t, f...) })
			held <- struct{}{}
			<-found
			end()
			unmount()
		})
	}()
	<-held
	refresh(t, r)
	if !knows(t, r, s.Inode()) {
		t.Error("not found")
	}
	close(found)
	<-held
}

// Else each agent would keep alive what the other holds.
func TestAnotherAgentIsNoUser(t *testing.T) {
	labtest.NoLeak(t)
	p := loadertest.Load(t)
	r, s := newRegistry(t, p), newSubject(t)
	end := keepers["a process"](t, s)
	agent := with(s.file(), func(f ...*os.File) func() { return child(t, "agent", nil, f...) })
	_ = s.Close()
	refresh(t, r)
	if !knows(t, r, s.Inode()) {
		t.Fatal("not found")
	}
	end()
	refresh(t, r)
	if knows(t, r, s.Inode()) {
		t.Error("kept for another agent's sake")
	}
	if s.isFreed() {
		t.Error("freed: the other agent does not hold it")
	}
	agent()
	labtest.Eventually(t, patience, s.isFreed, "the kernel frees the namespace")
}

// An orphan, which is a connection that nobody has open any more, keeps its
// namespace alive for the kernel, and for nobody else.
func TestOrphanIsNoUser(t *testing.T) {
	labtest.NoLeak(t)
	p := loadertest.Load(t)
	r, s := newRegistry(t, p), newSubject(t)
	refresh(t, r) // what is there already does not take the next one's time
	if err := s.Do(orphan); err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
	refresh(t, r)
	if knows(t, r, s.Inode()) {
		t.Error("found")
	}
	if s.isFreed() {
		t.Error("freed: there is no orphan")
	}
	labtest.Eventually(t, patience, s.isFreed, "the kernel frees the namespace once the orphan has ended")
}

// orphan leaves a closed connection behind whose data nobody takes, for six
// seconds.
func orphan() error {
	if err := os.WriteFile("/proc/sys/net/ipv4/tcp_orphan_retries", []byte("4"), 0); err != nil {
		return err
	}
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer ln.Close()
	c, err := net.Dial("tcp4", ln.Addr().String())
	if err != nil {
		return err
	}
	defer c.Close()
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetDown(lo)
	}
	if err != nil {
		return err
	}
	_, err = c.Write([]byte("x"))
	return err
}
