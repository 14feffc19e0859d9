// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/netns/registry"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/sockets"
)

// blind is a registry.Walker that may not look everywhere.
type blind struct{ err error }

func (b blind) Residents([]uint32, func(int, uint32)) error    { return b.err }
func (b blind) Holders([]uint32, func(int, int, uint32)) error { return b.err }

// few are the sockets of every namespace: one, or none.
type few struct {
	agent.Sockets
	agent.Kernel
	have []conn.Snapshot
	pol  *policy.Policy
}

func (f *few) Get(_ *netns.NS, local, _ netip.AddrPort) (conn.Snapshot, error) {
	for _, s := range f.have {
		if s.Local == local {
			return s, nil
		}
	}
	return conn.Snapshot{}, sockets.ErrGone
}

func (f *few) Scan(_ *netns.NS, fn func(conn.Snapshot) error) error {
	for _, s := range f.have {
		if err := fn(s); err != nil {
			return err
		}
	}
	return nil
}

func (f *few) InForce() *loader.InForce { return loader.NewInForce(f.pol, map[uint32]int{1: 0}) }

// newFew serves the namespaces that are in sight of an agent that may not look
// everywhere, for whatever reason.
func newFew(t *testing.T, why error, have ...conn.Snapshot) *admin {
	pol, err := policy.Parse("p.yaml", []byte("version: 1\npeers: [{name: server, cidrs: [10.91.2.0/24]}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := registry.New(blind{why})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Refresh(); !errors.Is(err, why) {
		t.Fatalf("Refresh: %v", err)
	}
	f := &few{have: have, pol: pol}
	of := agent.New(agent.Config{Sockets: f, Kernel: f, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	t.Cleanup(func() {
		of.Close()
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	closed := new(loader.Programs) // has no feature
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	return &admin{&service{agent: of, registry: r, spaces: r, programs: closed}}
}

// An agent that may not look everywhere answers for what it sees, says of a list that it
// is not complete and of a connection that it may be elsewhere, and holds no namespace
// once it has answered.
func TestOutOfSight(t *testing.T) {
	labtest.Root(t)
	id := conn.ID{Local: netip.MustParseAddrPort("10.91.1.2:1"), Remote: netip.MustParseAddrPort("10.91.2.2:2"), Cookie: 7}
	one := conn.Snapshot{ID: id, HasRecord: true, Record: conn.Record{Policy: 1}}
	for name, why := range map[string]error{"foreign processes": registry.ErrForeignPIDs, "refused": netns.ErrPermission, "other": errors.New("boom")} {
		t.Run(name, func(t *testing.T) {
			labtest.NoLeak(t)
			a := newFew(t, why, one)
			list, err := a.Sockets(t.Context())
			if len(list) == 0 || list[0].Policy != "server" || !errors.Is(err, why) {
				t.Errorf("sockets: %+v, %v", list, err)
			}
			spaces := len(list) // each has it
			asked, calls := id, 0
			asked.Netns = list[0].Netns
			if err := a.one(t.Context(), asked, func(*netns.NS, *conn.Snapshot) error { calls++; return nil }); err != nil || calls != 1 {
				t.Errorf("one of %d namespaces: %v, %d calls", spaces, err, calls)
			}
			asked.Local = netip.MustParseAddrPort("10.91.1.3:1")
			if err := a.one(t.Context(), asked, nil); !errors.Is(err, api.ErrNoSocket) || !errors.Is(err, why) {
				t.Errorf("another: %v", err)
			}
		})
	}
	t.Run("none", func(t *testing.T) {
		labtest.NoLeak(t)
		list, err := newFew(t, registry.ErrForeignPIDs).Sockets(t.Context())
		if list == nil || len(list) != 0 || !errors.Is(err, registry.ErrForeignPIDs) {
			t.Errorf("sockets: %+v, %v", list, err)
		}
	})
}
