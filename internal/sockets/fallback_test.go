// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
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

// fakeDiag answers every request with one error; with fine lists it lists nothing.
type fakeDiag struct {
	err  error
	fine bool
}

func (d fakeDiag) List(sockdiag.Filter, func(sockdiag.Socket) error) error {
	if d.fine {
		return nil
	}
	return d.err
}
func (d fakeDiag) Destroy(conn.ID) error { return d.err }
func (d fakeDiag) CanDestroy() error     { return d.err }
func (d fakeDiag) Close() error          { return nil }

// answers makes inet_diag answer so.
func (s *Sockets) answers(d fakeDiag) *Sockets {
	s.dial = func(*netns.NS) (diag, error) { return d, nil }
	return s
}

// fakePrograms are programs of which only the walks are used.
type fakePrograms struct {
	Programs
	scanErr    error
	destroyErr error
	destroyed  []loader.Condemned
	stands     bool // a look finds the socket
}

func (p *fakePrograms) Look(netip.AddrPort, netip.AddrPort, uint32) (conn.Snapshot, error) {
	if !p.stands {
		return conn.Snapshot{}, loader.ErrNotFound
	}
	return conn.Snapshot{ID: conn.ID{Cookie: 71}, State: conn.Established}, nil
}

func (p *fakePrograms) Scan(func(conn.Snapshot) error) error { return p.scanErr }

func (p *fakePrograms) Destroy(ids []loader.Condemned) []error {
	p.destroyed = append(p.destroyed, ids...)
	errs := make([]error, len(ids))
	for i := range errs {
		errs[i] = p.destroyErr
	}
	return errs
}

var noDiag = fmt.Errorf("destroy: %w (CONFIG_INET_DIAG_DESTROY): %w", sockdiag.ErrUnsupported, unix.EOPNOTSUPP)

// TestWhoDestroys: the walk closes where inet_diag cannot, and nowhere else.
func TestWhoDestroys(t *testing.T) {
	own, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	id := conn.ID{Netns: own.Inode(), Cookie: 71}
	old := fmt.Errorf("bpf_sock_destroy: %w [needs Linux 6.5]", loader.ErrUnsupported)
	for name, c := range map[string]struct {
		diag, walk error
		want       []error // all of them; none: no error
		not        []error
		walks      int
	}{
		"inet_diag does it":        {nil, nil, nil, nil, 0},
		"gone":                     {sockdiag.ErrGone, nil, []error{ErrGone}, nil, 0},
		"refused":                  {sockdiag.ErrRefused, nil, []error{ErrGone}, nil, 0},
		"no permission":            {sockdiag.ErrPermission, nil, []error{sockdiag.ErrPermission}, []error{ErrGone}, 0},
		"not a socket":             {sockdiag.ErrInvalid, nil, []error{sockdiag.ErrInvalid}, []error{ErrGone}, 0},
		"the walk does it":         {noDiag, nil, nil, nil, 1},
		"gone, says the walk":      {noDiag, loader.ErrNotFound, []error{ErrGone}, []error{sockdiag.ErrUnsupported}, 1},
		"the walk fails":           {noDiag, unix.ENOMEM, []error{unix.ENOMEM, sockdiag.ErrUnsupported}, []error{ErrGone}, 1},
		"neither can":              {noDiag, old, []error{sockdiag.ErrUnsupported, loader.ErrUnsupported}, []error{ErrGone}, 1},
		"too late":                 {noDiag, loader.ErrLate, []error{loader.ErrLate}, []error{ErrGone}, 1},
		"passed by":                {noDiag, loader.ErrNotFound, []error{loader.ErrNotFound}, []error{ErrGone}, 2},
		"no socket to ask through": {fmt.Errorf("connect: %w", sockdiag.ErrUnsupported), nil, nil, nil, 1},
	} {
		p := &fakePrograms{destroyErr: c.walk, stands: name == "passed by"}
		s := New(p).answers(fakeDiag{err: c.diag})
		if name == "no socket to ask through" {
			s.dial = func(*netns.NS) (diag, error) { return nil, c.diag }
		}
		err := s.Destroy(own, id)
		if (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v", name, err)
		}
		for _, want := range c.want {
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", name, err, want)
			}
		}
		for _, not := range c.not {
			if errors.Is(err, not) {
				t.Errorf("%s: %v is also %v", name, err, not)
			}
		}
		if len(p.destroyed) != c.walks || c.walks == 1 && (p.destroyed[0].ID != id || p.destroyed[0].Until < conn.Now()) {
			t.Errorf("%s: walks for %v, want %d", name, p.destroyed, c.walks)
		}
		if name == "neither can" && (!strings.Contains(err.Error(), "by inet_diag:") || !strings.Contains(err.Error(), "by bpf_destroy:")) {
			t.Errorf("%s: %q does not name both", name, err)
		}
		if len(s.closes.queues) != 0 {
			t.Errorf("%s: a queue is left", name)
		}
	}
}

// TestWhoFinds: the same for Find, where neither can.
func TestWhoFinds(t *testing.T) {
	own, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	old := fmt.Errorf("walk sockets: %w", loader.ErrUnsupported)
	_, err = New(&fakePrograms{scanErr: old}).answers(fakeDiag{err: noDiag}).Find(own, netip.AddrPort{}, 71)
	if !errors.Is(err, sockdiag.ErrUnsupported) || !errors.Is(err, loader.ErrUnsupported) ||
		!strings.Contains(err.Error(), "by inet_diag:") || !strings.Contains(err.Error(), "by scan:") {
		t.Errorf("neither can: %v", err)
	}
	_, err = New(&fakePrograms{scanErr: old}).answers(fakeDiag{err: sockdiag.ErrInterrupted}).Find(own, netip.AddrPort{}, 71)
	if !errors.Is(err, sockdiag.ErrInterrupted) || errors.Is(err, loader.ErrUnsupported) {
		t.Errorf("interrupted: %v", err)
	}
	found, err := New(&fakePrograms{scanErr: old}).answers(fakeDiag{fine: true}).Find(own, netip.AddrPort{}, 71)
	if err != nil || found != nil {
		t.Errorf("inet_diag finds nothing: %v, %v", found, err)
	}
}

// loadWalks loads the programs, where the kernel has the one that closes.
func loadWalks(t *testing.T) *loader.Programs {
	t.Helper()
	p := loadertest.Load(t)
	loadertest.Need(t, p, kernel.BPFDestroy)
	return p
}

// TestWithoutInetDiag finds and closes real connections of each kind by walks.
func TestWithoutInetDiag(t *testing.T) {
	p := loadWalks(t)
	l := labtest.New(t, lab.Options{})
	s, whole := New(p).answers(fakeDiag{err: noDiag}), New(p)
	for name, way := range map[string]struct {
		dialer labtest.Dialer
		server netip.Addr
	}{
		"IPv4":   {labtest.Dialer{NS: l.Client}, l.ServerAddr4},
		"IPv6":   {labtest.Dialer{NS: l.Client}, l.ServerAddr6},
		"mapped": {labtest.Dialer{NS: l.Client, Mapped: true}, l.ServerAddr4},
	} {
		client, server := labtest.PairTo(t, way.dialer, l.Server, netip.AddrPortFrom(way.server, 0))
		sibling, siblingPeer := labtest.PairTo(t, way.dialer, l.Server, labtest.Addr(server.LocalAddr()))
		id := labtest.ID(t, l.Client, client)
		for _, c := range []*net.TCPConn{server, sibling, siblingPeer} {
			labtest.Cookie(t, c) // inet_diag gives one to whoever has none, a walk does not
		}
		t.Run(name, func(t *testing.T) {
			findsAlike(t, l, s, whole, id, labtest.Addr(server.LocalAddr()), labtest.Cookie(t, sibling))
			closesOne(t, l, s, id, client, sibling, siblingPeer)
		})
	}
}

// findsAlike compares what is found without inet_diag and with it, of a connection
// that has one sibling to its server.
func findsAlike(t *testing.T, l *lab.Lab, s, whole *Sockets, id conn.ID, server netip.AddrPort, sibling uint64) {
	t.Helper()
	for what, ask := range map[string]struct {
		ns     *netns.NS
		local  netip.AddrPort
		cookie uint64
		count  int
	}{
		"by cookie":              {l.Client, netip.AddrPort{}, id.Cookie, 1},
		"by local address":       {l.Client, id.Local, 0, 1},
		"by both":                {l.Client, id.Local, id.Cookie, 1},
		"by another's cookie":    {l.Client, id.Local, sibling, 0},
		"by no cookie there is":  {l.Client, netip.AddrPort{}, id.Cookie + 1<<40, 0},
		"in another namespace":   {l.Server, netip.AddrPort{}, id.Cookie, 0},
		"all of a local address": {l.Server, server, 0, 2},
		"all, and no listener":   {l.Server, netip.AddrPort{}, 0, -1},
	} {
		got, err := s.Find(ask.ns, ask.local, ask.cookie)
		want, werr := whole.Find(ask.ns, ask.local, ask.cookie)
		if err != nil || werr != nil || ask.count >= 0 && len(got) != ask.count {
			t.Errorf("%s: %d found, %v, %v; want %d", what, len(got), err, werr, ask.count)
		}
		if d := cmp.Diff(names(want), names(got), cmpopts.EquateComparable(conn.ID{})); d != "" {
			t.Errorf("%s (-inet_diag +walk):\n%s", what, d)
		}
		for i := range got {
			if got[i].Locked {
				t.Errorf("%s: looks locked: by the walk itself", what)
			}
		}
	}
}

// closesOne closes one connection, once, and not its sibling.
func closesOne(t *testing.T, l *lab.Lab, s *Sockets, id conn.ID, client, sibling, siblingPeer *net.TCPConn) {
	t.Helper()
	wrong := id
	wrong.Cookie += 1 << 40
	if err := s.Destroy(l.Client, wrong); !errors.Is(err, ErrGone) {
		t.Errorf("a wrong cookie: %v, want ErrGone", err)
	}
	if err := s.Destroy(l.Client, id); err != nil {
		t.Error(err)
	}
	client.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNABORTED) {
		t.Errorf("read: %v, want ECONNABORTED", err)
	}
	if err := s.Destroy(l.Client, id); !errors.Is(err, ErrGone) {
		t.Errorf("closing twice: %v, want ErrGone", err)
	}
	sibling.Write([]byte("x"))
	siblingPeer.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadFull(siblingPeer, make([]byte, 1)); err != nil {
		t.Errorf("sibling: %v", err)
	}
}

// names makes a set of what was found.
func names(snaps []conn.Snapshot) map[conn.ID]bool {
	ids := make(map[conn.ID]bool)
	for i := range snaps {
		ids[snaps[i].ID] = true
	}
	return ids
}

// TestManyWithoutInetDiag: many closes at a time in one namespace, each of which
// is told what came of its own.
func TestManyWithoutInetDiag(t *testing.T) {
	p := loadWalks(t)
	l := labtest.New(t, lab.Options{})
	s := New(p).answers(fakeDiag{err: noDiag})
	const pairs = 30
	results := make(chan error, 2*pairs)
	for range pairs {
		client, _ := labtest.Pair(t, l, 0)
		id := labtest.ID(t, l.Client, client)
		for range 2 { // one of the two comes too late
			go func() { results <- s.Destroy(l.Client, id) }()
		}
	}
	closed, gone := 0, 0
	for range 2 * pairs {
		switch err := <-results; {
		case err == nil:
			closed++
		case errors.Is(err, ErrGone):
			gone++
		default:
			t.Error(err)
		}
	}
	if closed != pairs || gone != pairs {
		t.Errorf("%d closed, %d gone; want %d of each", closed, gone, pairs)
	}
}

// One way to close is enough.
func TestCanDestroy(t *testing.T) {
	own, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	old := fmt.Errorf("bpf_destroy: %w", loader.ErrUnsupported)
	for _, tc := range []struct{ diag, walk, want error }{
		{nil, nil, nil}, {nil, old, nil}, {noDiag, nil, nil}, {noDiag, old, loader.ErrUnsupported},
	} {
		err := New(&fakePrograms{}).answers(fakeDiag{err: tc.diag}).CanDestroy(own, tc.walk)
		if !errors.Is(err, tc.want) {
			t.Errorf("inet_diag %v, walk %v: %v, want %v", tc.diag, tc.walk, err, tc.want)
		}
	}
	if err := New(&fakePrograms{}).CanDestroy(own, old); os.Geteuid() == 0 && !labtest.Without("destroy") && err != nil {
		t.Errorf("this kernel: %v", err)
	}
}

// TestNoDiagDestroy: where this kernel's inet_diag destroys nothing a walk does, and
// where that cannot either it is said what would have to be there.
func TestNoDiagDestroy(t *testing.T) {
	labtest.NoDiagDestroy(t)
	p := loadertest.Load(t)
	walks := loadertest.Has(t, p, kernel.BPFDestroy)
	l, s := labtest.New(t, lab.Options{}), New(p)
	if err := s.CanDestroy(l.Client, loader.ErrUnsupported); !errors.Is(err, sockdiag.ErrUnsupported) {
		t.Errorf("inet_diag alone can destroy: %v", err)
	}
	if err := s.CanDestroy(l.Client, p.Lacks(kernel.BPFDestroy)); walks != (err == nil) || !walks && !errors.Is(err, sockdiag.ErrUnsupported) {
		t.Errorf("can destroy: %v; a walk can: %t", err, walks)
	}
	client, server := labtest.Pair(t, l, 0)
	id := labtest.ID(t, l.Client, client)
	if found, err := s.Find(l.Client, netip.AddrPort{}, id.Cookie); err != nil || len(found) != 1 || found[0].ID != id {
		t.Errorf("found %v, %v; want %v", found, err, id)
	}
	if walks {
		sibling, siblingPeer := labtest.PairTo(t, labtest.Dialer{NS: l.Client}, l.Server, netip.AddrPortFrom(l.ServerAddr4, 0))
		closesOne(t, l, s, id, client, sibling, siblingPeer)
		return
	}
	err := s.Destroy(l.Client, id)
	if !errors.Is(err, sockdiag.ErrUnsupported) || !errors.Is(err, loader.ErrUnsupported) || !strings.Contains(err.Error(), "(CONFIG_INET_DIAG_DESTROY)") {
		t.Errorf("destroy: %v", err)
	}
	if _, err := client.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	server.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadFull(server, make([]byte, 1)); err != nil {
		t.Errorf("it is closed: %v", err)
	}
}
