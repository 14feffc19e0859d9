// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/netns"
)

func TestNear(t *testing.T) {
	a, b, c := netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("10.0.0.2:2"), netip.MustParseAddrPort("10.0.0.3:3")
	have := conn.ID{Local: a, Remote: b, Cookie: 7}
	for _, tc := range []struct {
		what  string
		asked conn.ID
		how   string // "": not near
	}{
		{"cookie, of another namespace", conn.ID{Cookie: 7, Netns: 9}, "of that cookie"},
		{"another cookie", conn.ID{Cookie: 8}, ""},
		{"another cookie, its addresses", conn.ID{Cookie: 8, Local: a, Remote: b}, "of these addresses"},
		{"local alone, of another namespace", conn.ID{Local: a, Netns: 9}, "of these addresses"},
		{"the other way round", conn.ID{Local: b, Remote: a}, "the other way round"},
		{"the peer as local", conn.ID{Local: b}, "the other way round"},
		{"another peer", conn.ID{Local: a, Remote: c}, "of that local address"},
		{"another local port", conn.ID{Local: c, Remote: b}, "to that peer"},
		{"the local as peer", conn.ID{Local: c, Remote: a}, "of that address"},
		{"neither", conn.ID{Local: c, Remote: c}, ""},
	} {
		n, ok := newNear(tc.asked, have)
		if ok != (tc.how != "") || n.how != tc.how || ok && n.id != have {
			t.Errorf("%s: %+v, %v, want %q", tc.what, n, ok, tc.how)
		}
	}
}

// TestNearest: of many that are near the nearest are told, of all walks together, and
// how many others there are.
func TestNearest(t *testing.T) {
	var all nearest
	for walk := range 2 {
		var here nearest
		for i, rank := range []int{4, 3, 4, 1, 5, 3} {
			here.add(near{id: conn.ID{Cookie: uint64(100*walk + i)}, rank: rank})
		}
		all.join(&here)
	}
	var got []uint64
	for _, n := range all.list {
		got = append(got, n.id.Cookie)
	}
	if !slices.Equal(got, []uint64{3, 103, 1}) || all.all != 12 {
		t.Errorf("%v of %d", got, all.all)
	}
}

// stuck are sockets of which an application keeps one locked: walks come no further.
type stuck struct {
	agent.Sockets
	let   chan struct{}
	walks atomic.Int32
	one   conn.Snapshot // what a walk comes to first
}

func (s *stuck) Scan(_ *netns.NS, fn func(conn.Snapshot) error) error {
	s.walks.Add(1)
	err := fn(s.one)
	<-s.let
	return err
}

// TestSocketsHeldUp: where one namespace cannot be listed the others are.
func TestSocketsHeldUp(t *testing.T) {
	heldUp := errors.New("list sockets of netns 7: held up")
	errs := []error{nil, heldUp, nil}
	list := func(*netns.NS) ([]api.Socket, error) {
		err := errs[0]
		if errs = errs[1:]; err != nil {
			return nil, err
		}
		return make([]api.Socket, 2), nil
	}
	all, err := listAll(t.Context(), make([]*netns.NS, len(errs)), list)
	if len(all) != 4 || !errors.Is(err, heldUp) {
		t.Errorf("%d listed, error %v", len(all), err)
	}
}

// TestNearHeldUp: who asks again and again about a connection that has ended, while a
// walk waits for a lock, is answered each time, and leaves no more walks than there are
// places for.
func TestNearHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ns, err := netns.Current()
		if err != nil {
			t.Fatal(err)
		}
		defer ns.Close()
		s := &stuck{let: make(chan struct{}), one: conn.Snapshot{ID: conn.ID{Cookie: 7}}}
		of := agent.New(agent.Config{Sockets: s, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
		defer of.Close()
		defer close(s.let)
		a := &admin{&service{agent: of}}
		for range 20 {
			began := time.Now()
			err := a.none(t.Context(), []*netns.NS{ns, ns, ns, ns, ns, ns, ns, ns}, conn.ID{Cookie: 7})
			if !errors.Is(err, api.ErrNoSocket) || strings.Contains(err.Error(), "near it") || time.Since(began) > 2*nearLimit {
				t.Errorf("after %s: %v", time.Since(began), err)
			}
		}
		if n := s.walks.Load(); n > 8 {
			t.Errorf("%d walks", n)
		}
		gone, leave := context.WithCancel(t.Context())
		leave()
		s.walks.Store(0)
		if found := a.nearIn(gone, []*netns.NS{ns}, conn.ID{Cookie: 7}); found.all != 0 || s.walks.Load() != 0 {
			t.Errorf("for one who has left: %+v, %d walks", found, s.walks.Load())
		}
	})
}
