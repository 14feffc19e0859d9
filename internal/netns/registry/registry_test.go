// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/kernel"
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

// subject is a namespace that the test lets go of, to see whether it is freed.
type subject struct {
	*netns.NS
	outer *netns.NS // has one end of a pair of devices; the other is inside
	name  string    // where named put it
}

const device = "subject"

func newSubject(t testing.TB) *subject {
	t.Helper()
	s := &subject{NS: labtest.Netns(t), outer: labtest.Netns(t)}
	veth := netlink.NewVeth(netlink.NewLinkAttrs())
	veth.Name, veth.PeerName, veth.PeerNamespace = device, "inside", netlink.NsFd(s.FD())
	if err := s.outer.Do(func() error { return netlink.LinkAdd(veth) }); err != nil {
		t.Fatal(err)
	}
	return s
}

// isFreed: a device vanishes with its peer, which is freed with its namespace.
func (s *subject) isFreed() bool {
	return s.outer.Do(func() error {
		_, err := netlink.LinkByName(device)
		return err
	}) != nil
}

func (s *subject) file() *os.File {
	fd, err := unix.FcntlInt(uintptr(s.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		panic(err)
	}
	return os.NewFile(uintptr(fd), "netns")
}

// socket opens one inside.
func (s *subject) socket(t testing.TB, domain, kind int) *os.File {
	t.Helper()
	fd := -1
	err := s.Do(func() (err error) {
		fd, err = unix.Socket(domain, kind|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "socket")
}

// with gives a file away to start and closes ours.
func with(f *os.File, start func(...*os.File) func()) func() {
	defer f.Close()
	return start(f)
}

// keepers are what keeps a namespace alive, each alone.
var keepers = map[string]func(testing.TB, *subject) (end func()){
	"a process": func(t testing.TB, s *subject) (end func()) {
		if err := s.Do(func() error { end = sleeper(t); return nil }); err != nil {
			t.Fatal(err)
		}
		return end
	},
	"a thread": func(t testing.TB, s *subject) func() {
		return with(s.file(), func(f ...*os.File) func() { return child(t, "thread", nil, f...) })
	},
	"a TCP socket": func(t testing.TB, s *subject) func() {
		return with(s.socket(t, unix.AF_INET6, unix.SOCK_STREAM), func(f ...*os.File) func() { return sleeper(t, f...) })
	},
	"a netlink socket": func(t testing.TB, s *subject) func() {
		return with(s.socket(t, unix.AF_NETLINK, unix.SOCK_RAW), func(f ...*os.File) func() { return sleeper(t, f...) })
	},
	"a descriptor": func(t testing.TB, s *subject) func() {
		return with(s.file(), func(f ...*os.File) func() { return sleeper(t, f...) })
	},
	"a name": named,
	"a process that hides its socket": func(t testing.TB, s *subject) func() {
		if running, _, err := kernel.Running(); err != nil || running.Before(kernel.Release{Major: 6, Minor: 9}) {
			t.Skip("needs PIDFD_THREAD (Linux 6.9)")
		}
		return with(s.file(), func(f ...*os.File) func() { return child(t, "table", nil, f...) })
	},
}

// named mounts the namespace in a mount namespace of the calling thread's own,
// which the test must have locked for good.
func named(t testing.TB, s *subject) func() {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "with a space")
	s.name = name
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Do(func() error { return unix.Mount("/proc/thread-self/ns/net", name, "", unix.MS_BIND, "") }); err != nil {
		t.Fatal(err)
	}
	return sync.OnceFunc(func() {
		// Not possible while anybody has a file open by way of it.
		if err := unix.Unmount(name, 0); err != nil {
			t.Error(err)
		}
	})
}

// onOwnThread runs a test on a thread that is thrown away.
func onOwnThread(fn func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		fn()
	}()
	<-done
}

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

// What may not be looked at is counted, and hides nothing else.
func TestWithoutPtrace(t *testing.T) {
	labtest.NoLeak(t)
	p := loadertest.Load(t)
	r := newRegistry(t, p)
	refresh(t, r)
	before := r.Status().Denied
	hidden := newSubject(t)
	keepers["a process"](t, hidden)
	socket := newSubject(t)
	keepers["a TCP socket"](t, socket)
	onOwnThread(func() {
		if err := drop(unix.CAP_SYS_PTRACE); err != nil {
			t.Error(err)
			return
		}
		if err := r.Refresh(); !errors.Is(err, netns.ErrPermission) {
			t.Errorf("Refresh: %v", err)
		}
	})
	if got := r.Status(); got.Denied < before+2 || knows(t, r, hidden.Inode()) || knows(t, r, socket.Inode()) {
		t.Errorf("%+v, want two more denied than %d", got, before)
	}
	refresh(t, r)
	if got := r.Status(); got.Denied > before || !knows(t, r, hidden.Inode()) || !knows(t, r, socket.Inode()) {
		t.Errorf("with all rights: %+v", got)
	}
}

// drop takes a capability from the calling thread alone.
func drop(capability int) error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return err
	}
	data[capability/32].Effective &^= 1 << (capability % 32)
	data[capability/32].Permitted &^= 1 << (capability % 32)
	return unix.Capset(&hdr, &data[0])
}

// childPIDs is an agent in a process id namespace of its own.
func childPIDs() error {
	r, err := registry.New(nil)
	if err != nil {
		return err
	}
	if err := r.Refresh(); !errors.Is(err, registry.ErrForeignPIDs) {
		return errors.New("Refresh does not say that processes are out of sight")
	}
	return nil
}

func TestForeignPIDs(t *testing.T) {
	labtest.Root(t)
	r := newRegistry(t, nil)
	if err := r.Refresh(); errors.Is(err, registry.ErrForeignPIDs) {
		t.Skip(err)
	}
	child(t, "pids", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID})
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

// A refresh on a node with 500 processes, of which each tenth has a namespace of
// its own, and 20,000 open files.
func BenchmarkRefresh(b *testing.B) {
	p := loadertest.Load(b)
	var files []*os.File
	for range 40 {
		f, err := os.Open("/dev/null")
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		files = append(files, f)
	}
	for i := range 500 {
		cmd := exec.Command("cat")
		cmd.ExtraFiles = files
		if i%10 == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		}
		started(b, cmd)
	}
	for name, w := range map[string]registry.Walker{"walks": p, "proc": nil} {
		b.Run(name, func(b *testing.B) {
			r := newRegistry(b, w)
			for b.Loop() {
				refresh(b, r)
			}
		})
	}
	b.Run("threads", func(b *testing.B) {
		for b.Loop() {
			_ = p.Residents(nil, func(int, uint32) {})
		}
	})
	b.Run("files", func(b *testing.B) {
		for b.Loop() {
			_ = p.Holders(nil, func(int, int, uint32) {})
		}
	})
}
