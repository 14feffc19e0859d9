// SPDX-License-Identifier: Apache-2.0

package sockdiag_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/sockdiag"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// dial connects to inet_diag of ns for this test.
func dial(t testing.TB, ns *netns.NS) *sockdiag.Conn {
	t.Helper()
	c, err := sockdiag.Dial(ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// ways are the three ways to speak to the lab's server.
func ways(l *lab.Lab) map[string]struct {
	dialer labtest.Dialer
	server netip.AddrPort
} {
	return map[string]struct {
		dialer labtest.Dialer
		server netip.AddrPort
	}{
		"v4":     {labtest.Dialer{NS: l.Client}, netip.AddrPortFrom(l.ServerAddr4, 0)},
		"v6":     {labtest.Dialer{NS: l.Client}, netip.AddrPortFrom(l.ServerAddr6, 0)},
		"mapped": {labtest.Dialer{NS: l.Client, Mapped: true}, netip.AddrPortFrom(l.ServerAddr4, 0)},
	}
}

func TestGet(t *testing.T) {
	labtest.NoLeak(t)
	l := labtest.New(t, lab.Options{})
	diag := dial(t, l.Client)
	for name, way := range ways(l) {
		way.dialer.Setup = func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, 42) }
		client, server := labtest.PairTo(t, way.dialer, l.Server, way.server)
		if _, err := server.Write([]byte("unread")); err != nil {
			t.Fatal(err)
		}
		id := labtest.ID(t, l.Client, client)
		labtest.Eventually(t, 10*time.Second, func() bool {
			s, err := diag.Get(id)
			return err == nil && s.RQueue == 6
		}, name+": 6 bytes in the receive queue")

		s, err := diag.Get(id)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if s.ID != id {
			t.Errorf("%s: id %+v, want %+v", name, s.ID, id)
		}
		if s.State != conn.Established || s.UID != 0 || s.Inode == 0 || s.Mark != 42 || s.CgroupID == 0 || s.MD5 || s.ULP != "" {
			t.Errorf("%s: %+v", name, s)
		}
		if s.TCPInfo == nil || s.TCPInfo.Bytes_received != 6 || conn.State(s.TCPInfo.State) != conn.Established {
			t.Errorf("%s: tcp_info %+v", name, s.TCPInfo)
		}
		blind := id
		blind.Cookie, blind.Netns = 0, 0
		if s, err := diag.Get(blind); err != nil || s.ID != id {
			t.Errorf("%s: without cookie and namespace: %+v, %v", name, s.ID, err)
		}
		for what, wrong := range mistakes(id) {
			if s, err := diag.Get(wrong); !errors.Is(err, sockdiag.ErrGone) {
				t.Errorf("%s with %s: %+v, %v; want ErrGone", name, what, s.ID, err)
			}
		}
	}
}

// mistakes are IDs that differ from id in one thing.
func mistakes(id conn.ID) map[string]conn.ID {
	all := make(map[string]conn.ID)
	change := func(what string, fn func(*conn.ID)) {
		wrong := id
		fn(&wrong)
		all[what] = wrong
	}
	change("a wrong cookie", func(i *conn.ID) { i.Cookie++ })
	change("a wrong namespace", func(i *conn.ID) { i.Netns++ })
	change("a wrong local port", func(i *conn.ID) { i.Local = netip.AddrPortFrom(i.Local.Addr(), i.Local.Port()^1) })
	change("a wrong remote port", func(i *conn.ID) { i.Remote = netip.AddrPortFrom(i.Remote.Addr(), i.Remote.Port()^1) })
	change("a device", func(i *conn.ID) { i.Ifindex = 1 })
	if id.Local.Addr().Is4() {
		change("the other family", func(i *conn.ID) { i.Family ^= unix.AF_INET ^ unix.AF_INET6 })
	}
	return all
}

// destroyed is what both ends see of a close that was not theirs.
func destroyed(t *testing.T, name string, diag *sockdiag.Conn, id conn.ID, client, server *net.TCPConn) {
	t.Helper()
	blocked := make(chan error, 1)
	go func() {
		_, err := client.Read(make([]byte, 1))
		blocked <- err
	}()
	if err := diag.Destroy(id); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	select {
	case err := <-blocked:
		if !errors.Is(err, unix.ECONNABORTED) {
			t.Errorf("%s: the blocked reader got %v, want ECONNABORTED", name, err)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("%s: the reader is still blocked", name)
	}
	if _, err := client.Write([]byte("x")); !errors.Is(err, unix.EPIPE) {
		t.Errorf("%s: the next write got %v, want EPIPE", name, err)
	}
	_ = server.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := server.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("%s: the peer got %v, want ECONNRESET", name, err)
	}
	if err := diag.Destroy(id); !errors.Is(err, sockdiag.ErrGone) {
		t.Errorf("%s: second destroy: %v, want ErrGone", name, err)
	}
}

func TestDestroy(t *testing.T) {
	labtest.NoLeak(t)
	l := labtest.New(t, lab.Options{})
	diag := dial(t, l.Client)
	for name, way := range ways(l) {
		client, server := labtest.PairTo(t, way.dialer, l.Server, way.server)
		sibling, siblingServer := labtest.PairTo(t, way.dialer, l.Server, labtest.Addr(server.LocalAddr()))
		id := labtest.ID(t, l.Client, client)
		for what, wrong := range mistakes(id) {
			if err := diag.Destroy(wrong); !errors.Is(err, sockdiag.ErrGone) {
				t.Errorf("%s with %s: %v, want ErrGone", name, what, err)
			}
		}
		for what, fn := range map[string]func(*conn.ID){
			"no cookie":    func(i *conn.ID) { i.Cookie = 0 },
			"any cookie":   func(i *conn.ID) { i.Cookie = ^uint64(0) },
			"no namespace": func(i *conn.ID) { i.Netns = 0 },
			"no remote":    func(i *conn.ID) { i.Remote = netip.AddrPort{} },
		} {
			wrong := id
			fn(&wrong)
			if err := diag.Destroy(wrong); !errors.Is(err, sockdiag.ErrInvalid) {
				t.Errorf("%s with %s: %v, want ErrInvalid", name, what, err)
			}
		}
		alive(t, name, client, server)
		destroyed(t, name, diag, id, client, server)
		alive(t, name+" sibling", sibling, siblingServer)
	}
}

// alive sends a byte to and fro.
func alive(t *testing.T, name string, a, b *net.TCPConn) {
	t.Helper()
	for _, way := range [][2]*net.TCPConn{{a, b}, {b, a}} {
		if _, err := way[0].Write([]byte{1}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_ = way[1].SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := way[1].Read(make([]byte, 1)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_ = way[1].SetReadDeadline(time.Time{})
	}
}

// Two namespaces hold the same tuple; only the one that was meant is touched.
func TestDecoyInAnotherNamespace(t *testing.T) {
	labtest.NoLeak(t)
	local := netip.MustParseAddrPort("10.91.1.2:40122")
	var ids []conn.ID
	var pairs [][2]*net.TCPConn
	var diags []*sockdiag.Conn
	for range 2 {
		l := labtest.New(t, lab.Options{})
		client, server := labtest.PairTo(t, labtest.Dialer{NS: l.Client, Local: local}, l.Server, netip.AddrPortFrom(l.ServerAddr4, 7100))
		pairs = append(pairs, [2]*net.TCPConn{client, server})
		ids = append(ids, labtest.ID(t, l.Client, client))
		diags = append(diags, dial(t, l.Client))
	}
	if ids[0].Local != ids[1].Local || ids[0].Remote != ids[1].Remote {
		t.Fatalf("not one tuple: %s, %s", ids[0], ids[1])
	}
	if err := diags[1].Destroy(ids[0]); !errors.Is(err, sockdiag.ErrGone) {
		t.Errorf("through the other namespace: %v, want ErrGone", err)
	}
	// The kernel alone tells them apart, too: the cookie is of this host.
	mixed := ids[0]
	mixed.Netns = ids[1].Netns
	if err := diags[1].Destroy(mixed); !errors.Is(err, sockdiag.ErrGone) {
		t.Errorf("with the other's cookie: %v, want ErrGone", err)
	}
	for i, p := range pairs {
		alive(t, ids[i].String(), p[0], p[1])
	}
	destroyed(t, "the one meant", diags[0], ids[0], pairs[0][0], pairs[0][1])
	alive(t, "the decoy", pairs[1][0], pairs[1][1])
}

func TestListenerIsNeverDestroyed(t *testing.T) {
	labtest.NoLeak(t)
	l := labtest.New(t, lab.Options{})
	diag := dial(t, l.Server)
	ln := labtest.Listen(t, l.Server, netip.AddrPortFrom(l.ServerAddr4, 7100))
	client := labtest.Dial(t, l.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
	server := labtest.Accept(t, ln)
	gone := labtest.ID(t, l.Server, server)

	_ = server.SetLinger(0) // a reset, and no TIME_WAIT
	_ = server.Close()
	// Its exact tuple finds the listener now, and the listener's own cookie
	// would pass the kernel's test.
	listener := gone
	listener.Cookie = labtest.Cookie(t, ln)
	blind := gone
	blind.Cookie = 0
	for name, id := range map[string]conn.ID{"its cookie": gone, "the listener's cookie": listener, "no cookie": blind} {
		if s, err := diag.Get(id); !errors.Is(err, sockdiag.ErrGone) {
			t.Errorf("get with %s: %+v, %v; want ErrGone", name, s, err)
		}
		if name == "no cookie" {
			continue
		}
		if err := diag.Destroy(id); !errors.Is(err, sockdiag.ErrGone) {
			t.Errorf("destroy with %s: %v, want ErrGone", name, err)
		}
	}
	self := listener
	self.Remote = netip.MustParseAddrPort("0.0.0.0:0")
	if err := diag.Destroy(self); !errors.Is(err, sockdiag.ErrInvalid) {
		t.Errorf("destroy of the listener itself: %v, want ErrInvalid", err)
	}
	_ = client.Close()
	client = labtest.Dial(t, l.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
	alive(t, "through the listener", client, labtest.Accept(t, ln))
}

func TestBoundToDevice(t *testing.T) {
	labtest.NoLeak(t)
	l := labtest.New(t, lab.Options{})
	diag := dial(t, l.Client)
	for name, way := range ways(l) {
		way.dialer.Setup = func(fd int) error { return unix.BindToDevice(fd, "eth0") }
		client, server := labtest.PairTo(t, way.dialer, l.Server, way.server)
		id := labtest.ID(t, l.Client, client)
		if id.Ifindex == 0 {
			t.Fatal("the socket is not bound to a device")
		}
		free := id
		free.Ifindex = 0
		if _, err := diag.Get(free); !errors.Is(err, sockdiag.ErrGone) {
			t.Errorf("%s without the device: %v, want ErrGone", name, err)
		}
		if s, err := diag.Get(id); err != nil || s.ID != id {
			t.Errorf("%s: %+v, %v", name, s.ID, err)
		}
		destroyed(t, name, diag, id, client, server)
	}
}

func TestStatesThatMayBeDestroyed(t *testing.T) {
	labtest.NoLeak(t)
	l := labtest.New(t, lab.Options{})
	diag := dial(t, l.Client)
	reach := func(name string, id conn.ID, want conn.State) {
		t.Helper()
		labtest.Eventually(t, 10*time.Second, func() bool {
			s, err := diag.Get(id)
			return err == nil && s.State == want
		}, name+" in "+want.String())
	}

	client, server := labtest.Pair(t, l, 0)
	id := labtest.ID(t, l.Client, client)
	_ = server.CloseWrite()
	reach("peer closed", id, conn.CloseWait)
	if err := diag.Destroy(id); err != nil {
		t.Errorf("close_wait: %v", err)
	}

	client, server = labtest.Pair(t, l, 0)
	id = labtest.ID(t, l.Client, client)
	_ = client.CloseWrite()
	reach("half closed", id, conn.FinWait2)
	if err := diag.Destroy(id); err != nil {
		t.Errorf("fin_wait2: %v", err)
	}
	labtest.Eventually(t, 10*time.Second, func() bool { return labtest.State(t, server) == conn.Close }, "the peer of fin_wait2 reset")

	client, _ = labtest.Pair(t, l, 0)
	id = labtest.ID(t, l.Client, client)
	labtest.Fault(t)(l.Drop(lab.Match{Dst: lab.Only(l.ServerAddr4)}))
	_ = client.Close()
	reach("orphan", id, conn.FinWait1)
	if err := diag.Destroy(id); !errors.Is(err, sockdiag.ErrRefused) || !strings.Contains(err.Error(), "closed by its application") {
		t.Errorf("orphan: %v, want ErrRefused", err)
	}

	opening, id := labtest.Opening(t, l.Client, netip.AddrPortFrom(l.ClientAddr4, 40123), netip.AddrPortFrom(l.ServerAddr4, 7999))
	reach("opening", id, conn.SynSent)
	if err := diag.Destroy(id); !errors.Is(err, sockdiag.ErrRefused) {
		t.Errorf("syn_sent: %v, want ErrRefused", err)
	}
	if got := labtest.State(t, opening); got != conn.SynSent {
		t.Errorf("the connect is %s", got)
	}
}

func TestTimeWaitIsGone(t *testing.T) {
	l := labtest.New(t, lab.Options{})
	diag := dial(t, l.Client)
	client, server := labtest.Pair(t, l, 0)
	id := labtest.ID(t, l.Client, client)
	_ = client.Close()
	_ = server.Close()
	blind := id
	blind.Cookie = 0
	labtest.Eventually(t, 10*time.Second, func() bool {
		s, err := diag.Get(blind)
		return err == nil && s.State == conn.TimeWait
	}, "time_wait")
	if err := diag.Destroy(id); !errors.Is(err, sockdiag.ErrGone) {
		t.Errorf("time_wait: %v, want ErrGone", err)
	}
}

// root looks, but without CAP_NET_ADMIN it does not destroy.
func TestDestroyWithoutNetAdmin(t *testing.T) {
	l := labtest.New(t, lab.Options{})
	client, server := labtest.Pair(t, l, 0)
	id := labtest.ID(t, l.Client, client)
	diag := dial(t, l.Client)
	got := make(chan error)
	go func() {
		runtime.LockOSThread() // to the end: the thread dies with its lesser capabilities
		if err := dropNetAdmin(); err != nil {
			got <- err
			return
		}
		got <- diag.Destroy(id)
	}()
	if err := <-got; !errors.Is(err, sockdiag.ErrPermission) || errors.Is(err, os.ErrNotExist) {
		t.Errorf("destroy: %v, want ErrPermission", err)
	}
	alive(t, "afterwards", client, server)
}

// dropNetAdmin takes CAP_NET_ADMIN from the calling thread alone.
func dropNetAdmin() error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return err
	}
	data[0].Effective &^= 1 << unix.CAP_NET_ADMIN
	return unix.Capset(&hdr, &data[0])
}
