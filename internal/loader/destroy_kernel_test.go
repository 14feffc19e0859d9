// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/sockdiag"
)

// destroyer closes sockets by the program.
type destroyer struct{ *loader.Programs }

func newDestroyer(t *testing.T) destroyer {
	t.Helper()
	p := loadertest.Load(t)
	loadertest.Need(t, p, kernel.BPFDestroy)
	return destroyer{p}
}

// in closes sockets by one walk of ns.
func (d destroyer) in(t *testing.T, ns *netns.NS, ids ...conn.ID) (errs []error) {
	t.Helper()
	return d.until(t, conn.Now()+time.Minute, ns, ids...)
}

// until is in with a moment after which nothing is to be done.
func (d destroyer) until(t *testing.T, until time.Duration, ns *netns.NS, ids ...conn.ID) (errs []error) {
	t.Helper()
	var named []loader.Condemned
	for _, id := range ids {
		named = append(named, loader.Condemned{ID: id, Until: until})
	}
	if err := ns.Do(func() error { errs = d.Destroy(named); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(errs) != len(ids) {
		t.Fatalf("%d results for %d sockets", len(errs), len(ids))
	}
	return errs
}

// spared demands that no socket is closed in the place of id.
func (d destroyer) spared(t *testing.T, ns *netns.NS, what string, id conn.ID) {
	t.Helper()
	if err := d.in(t, ns, id)[0]; !errors.Is(err, loader.ErrNotFound) {
		t.Errorf("%s: %v, want ErrNotFound", what, err)
	}
}

// wantAlive sends a byte to and fro.
func wantAlive(t *testing.T, what string, a, b *net.TCPConn) {
	t.Helper()
	for _, way := range [][2]*net.TCPConn{{a, b}, {b, a}} {
		way[0].Write([]byte{1})
		way[1].SetReadDeadline(time.Now().Add(late))
		if _, err := way[1].Read(make([]byte, 1)); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		way[1].SetReadDeadline(time.Time{})
	}
}

// ways are the ways to speak to the lab's server.
func ways(l *lab.Lab) map[string]struct {
	dialer labtest.Dialer
	server netip.AddrPort
} {
	bound := func(fd int) error { return unix.BindToDevice(fd, "eth0") }
	return map[string]struct {
		dialer labtest.Dialer
		server netip.AddrPort
	}{
		"IPv4":              {labtest.Dialer{NS: l.Client}, netip.AddrPortFrom(l.ServerAddr4, 0)},
		"IPv6":              {labtest.Dialer{NS: l.Client}, netip.AddrPortFrom(l.ServerAddr6, 0)},
		"mapped":            {labtest.Dialer{NS: l.Client, Mapped: true}, netip.AddrPortFrom(l.ServerAddr4, 0)},
		"bound to a device": {labtest.Dialer{NS: l.Client, Setup: bound}, netip.AddrPortFrom(l.ServerAddr6, 0)},
	}
}

// mistakes are names of no socket that differ from id in one thing.
func mistakes(id conn.ID) map[string]conn.ID {
	all := make(map[string]conn.ID)
	change := func(what string, fn func(*conn.ID)) {
		wrong := id
		fn(&wrong)
		all["a wrong "+what] = wrong
	}
	change("cookie", func(i *conn.ID) { i.Cookie += 1 << 40 })
	change("namespace", func(i *conn.ID) { i.Netns++ })
	change("family", func(i *conn.ID) { i.Family ^= unix.AF_INET ^ unix.AF_INET6 })
	change("device", func(i *conn.ID) { i.Ifindex++ })
	change("local port", func(i *conn.ID) { i.Local = netip.AddrPortFrom(i.Local.Addr(), i.Local.Port()^1) })
	change("remote port", func(i *conn.ID) { i.Remote = netip.AddrPortFrom(i.Remote.Addr(), i.Remote.Port()^1) })
	change("local address", func(i *conn.ID) { i.Local = netip.AddrPortFrom(i.Local.Addr().Next(), i.Local.Port()) })
	change("remote address", func(i *conn.ID) { i.Remote = netip.AddrPortFrom(i.Remote.Addr().Next(), i.Remote.Port()) })
	return all
}

// TestDestroyByWalk: exactly the one that is named, and both ends see of it what
// they see of SOCK_DESTROY.
func TestDestroyByWalk(t *testing.T) {
	d := newDestroyer(t)
	l := labtest.New(t, lab.Options{})
	for name, way := range ways(l) {
		t.Run(name, func(t *testing.T) {
			client, server := labtest.PairTo(t, way.dialer, l.Server, way.server)
			sibling, siblingPeer := labtest.PairTo(t, way.dialer, l.Server, labtest.Addr(server.LocalAddr()))
			id := labtest.ID(t, l.Client, client)
			for what, wrong := range mistakes(id) {
				d.spared(t, l.Client, what, wrong)
			}
			d.spared(t, l.Server, "in another namespace", id)
			if err := d.in(t, l.Client, conn.ID{Netns: id.Netns, Cookie: id.Cookie})[0]; err == nil {
				t.Error("closed without a tuple")
			}
			wantAlive(t, "after the mistakes", client, server)

			blocked := make(chan error, 1)
			go func() {
				_, err := client.Read(make([]byte, 1))
				blocked <- err
			}()
			if err := d.in(t, l.Client, id)[0]; err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-blocked:
				if !errors.Is(err, unix.ECONNABORTED) {
					t.Errorf("the blocked reader got %v, want ECONNABORTED", err)
				}
			case <-time.After(late):
				t.Fatal("the reader is still blocked")
			}
			if _, err := client.Write([]byte("x")); !errors.Is(err, unix.EPIPE) {
				t.Errorf("the next write got %v, want EPIPE", err)
			}
			server.SetReadDeadline(time.Now().Add(late))
			if _, err := server.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("the peer got %v, want ECONNRESET", err)
			}
			d.spared(t, l.Client, "a second time", id)
			wantAlive(t, "the sibling", sibling, siblingPeer)
		})
	}
}

// TestDestroySeveral: one walk closes several and says of each what came of it.
func TestDestroySeveral(t *testing.T) {
	d := newDestroyer(t)
	l := labtest.New(t, lab.Options{})
	var ids []conn.ID
	for range 3 {
		client, _ := labtest.Pair(t, l, 0)
		ids = append(ids, labtest.ID(t, l.Client, client))
	}
	kept, keptPeer := labtest.Pair(t, l, 0)
	gone := ids[1]
	gone.Cookie += 1 << 40
	incomplete := ids[1]
	incomplete.Cookie = 0
	errs := d.in(t, l.Client, ids[0], gone, ids[1], incomplete, ids[2], ids[2])
	for _, i := range []int{0, 2, 4} {
		if errs[i] != nil {
			t.Errorf("socket %d: %v", i, errs[i])
		}
	}
	if !errors.Is(errs[1], loader.ErrNotFound) || errs[3] == nil || errs[5] == nil {
		t.Errorf("gone: %v; incomplete: %v; named twice: %v", errs[1], errs[3], errs[5])
	}
	wantAlive(t, "who was not named", kept, keptPeer)
	// Nothing is left in the map of targets: neither of these is closed again.
	for _, id := range append(ids, gone) {
		d.spared(t, l.Client, "afterwards", id)
	}
}

// TestDestroyStates: what carries no connection, or has no process, is left.
func TestDestroyStates(t *testing.T) {
	d := newDestroyer(t)
	l := labtest.New(t, lab.Options{})
	diag, err := sockdiag.Dial(l.Client)
	if err != nil {
		t.Fatal(err)
	}
	defer diag.Close()
	in := func(id conn.ID, want conn.State) func() bool {
		return func() bool { s, err := diag.Get(id); return err == nil && s.State == want }
	}

	client, server := labtest.Pair(t, l, 0)
	id := labtest.ID(t, l.Client, client)
	server.CloseWrite()
	labtest.Eventually(t, late, in(id, conn.CloseWait), "close_wait")
	if err := d.in(t, l.Client, id)[0]; err != nil {
		t.Errorf("close_wait: %v", err)
	}

	client, _ = labtest.Pair(t, l, 0)
	id = labtest.ID(t, l.Client, client)
	client.CloseWrite()
	labtest.Eventually(t, late, in(id, conn.FinWait2), "fin_wait2")
	if err := d.in(t, l.Client, id)[0]; err != nil {
		t.Errorf("fin_wait2: %v", err)
	}

	client, server = labtest.Pair(t, l, 0)
	id = labtest.ID(t, l.Client, client)
	client.Close()
	server.Close()
	blind := id
	blind.Cookie = 0 // older kernels do not keep it
	labtest.Eventually(t, late, in(blind, conn.TimeWait), "time_wait")
	d.spared(t, l.Client, "time_wait", id)
	if !in(blind, conn.TimeWait)() {
		t.Error("time_wait is gone")
	}

	client, _ = labtest.Pair(t, l, 0)
	id = labtest.ID(t, l.Client, client)
	labtest.Fault(t)(l.Drop(lab.Match{Dst: lab.Only(l.ServerAddr4)}))
	client.Close()
	labtest.Eventually(t, late, in(id, conn.FinWait1), "an orphan in fin_wait1")
	d.spared(t, l.Client, "an orphan", id)
	if !in(id, conn.FinWait1)() {
		t.Error("the orphan is gone")
	}

	opening, id := labtest.Opening(t, l.Client, netip.AddrPortFrom(l.ClientAddr4, 40123), netip.AddrPortFrom(l.ServerAddr4, 7999))
	labtest.Eventually(t, late, in(id, conn.SynSent), "syn_sent")
	d.spared(t, l.Client, "syn_sent", id)
	if got := labtest.State(t, opening); got != conn.SynSent {
		t.Errorf("the connect is %s", got)
	}
}

// TestDestroyListener: a listener stays, however it is named, and so does what
// waits in its queue.
func TestDestroyListener(t *testing.T) {
	d := newDestroyer(t)
	l := labtest.New(t, lab.Options{})
	ln := labtest.Listen(t, l.Server, netip.AddrPortFrom(l.ServerAddr4, 7100))
	client := labtest.Dial(t, l.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
	self := conn.ID{
		Netns: l.Server.Inode(), Family: unix.AF_INET, Cookie: labtest.Cookie(t, ln),
		Local: labtest.Addr(ln.Addr()), Remote: netip.MustParseAddrPort("0.0.0.0:0"),
	}
	d.spared(t, l.Server, "the listener", self)
	queued := self
	queued.Remote = labtest.Addr(client.LocalAddr())
	d.spared(t, l.Server, "its cookie with the tuple of a connection", queued)

	diag, err := sockdiag.Dial(l.Server)
	if err != nil {
		t.Fatal(err)
	}
	defer diag.Close()
	queued.Cookie = 0
	s, err := diag.Get(queued)
	if err != nil {
		t.Fatal(err)
	}
	d.spared(t, l.Server, "not accepted yet", s.ID)
	server := labtest.Accept(t, ln)
	if got := labtest.Cookie(t, server); got != s.Cookie {
		t.Errorf("accepted cookie %d, want %d", got, s.Cookie)
	}
	wantAlive(t, "accepted", client, server)
}

// TestDestroyReused: a socket that is connected elsewhere keeps its cookie.
func TestDestroyReused(t *testing.T) {
	d := newDestroyer(t)
	l := labtest.New(t, lab.Options{Servers: 2})
	client, _ := labtest.Pair(t, l, 0)
	before := labtest.ID(t, l.Client, client)
	other := labtest.Listen(t, l.Servers[1].NS, netip.AddrPortFrom(l.Servers[1].Addr4, 0))
	labtest.Control(t, client, func(fd int) error {
		unspec := unix.RawSockaddr{Family: unix.AF_UNSPEC}
		if _, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&unspec)), unsafe.Sizeof(unspec)); errno != 0 {
			return errno
		}
		unix.SetNonblock(fd, false)
		defer unix.SetNonblock(fd, true)
		to := labtest.Addr(other.Addr())
		return unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
	})
	server := labtest.Accept(t, other)
	if now := labtest.Cookie(t, client); now != before.Cookie {
		t.Fatalf("cookie %d, was %d", now, before.Cookie)
	}
	d.spared(t, l.Client, "the connection before", before)
	wantAlive(t, "the connection after", client, server)
}

// TestDestroyLate: what condemned the socket is out of date.
func TestDestroyLate(t *testing.T) {
	d := newDestroyer(t)
	l := labtest.New(t, lab.Options{})
	client, server := labtest.Pair(t, l, 0)
	id := labtest.ID(t, l.Client, client)
	if err := d.until(t, conn.Now()-time.Millisecond, l.Client, id)[0]; !errors.Is(err, loader.ErrLate) || errors.Is(err, loader.ErrNotFound) {
		t.Errorf("got %v, want ErrLate", err)
	}
	if _, err := client.Write([]byte("x")); err != nil {
		t.Errorf("the socket is closed: %v", err)
	}
	if _, err := server.Read(make([]byte, 1)); err != nil {
		t.Errorf("the socket is closed: %v", err)
	}
}
