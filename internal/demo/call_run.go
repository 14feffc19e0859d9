// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/sockdiag"
)

// callRun is the call incident on its bed: one client, one agent, and a peer for
// each case. Case i calls server i; the last server is the peer elsewhere.
type callRun struct {
	bed
	cases []callCase

	client *process
	peers  []*process
	ids    map[channelKey]conn.ID // the channels, as the kernel has them
	counts map[int][]*lab.Counter // the tallies of each case
	opened chan callEvent

	mu   sync.Mutex    // guards what follows
	zero time.Duration // the moment of the first calls
	recs []callRecord
}

func newCallRun(s *stage) *callRun {
	cases := callCases()
	r := &callRun{
		bed:    bed{stage: s, dir: filepath.Join(s.dir, callName), title: "the call incident"},
		cases:  cases,
		ids:    make(map[channelKey]conn.ID),
		counts: make(map[int][]*lab.Counter),
		opened: make(chan callEvent, 4*len(cases)), // more than there are channels
		recs:   make([]callRecord, len(cases)),
	}
	for i := range r.recs {
		r.recs[i].resumed = never
		r.recs[i].kept = make(map[string]bool)
	}
	return r
}

// setUp builds the bed and returns when the client's channels are open.
func (r *callRun) setUp(ctx context.Context) error {
	if err := r.build(len(r.cases) + 1); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*readyTimeout)
	defer cancel()
	if err := r.startPeers(ctx); err != nil {
		return err
	}
	if err := r.startAgent(ctx, callPolicy(r.cases, r.lab.Servers)); err != nil {
		return err
	}
	var err error
	r.client, err = r.start(command{
		name: "client", ns: r.lab.Client, cgroup: r.cgroup, line: r.heard,
		args: []string{ClientCommand, callName, "--report", r.reportSocket(), "--timeout", callTimeout.String()},
	})
	if err != nil {
		return err
	}
	for i, c := range r.cases {
		for _, ch := range c.channels {
			if err := r.open(ctx, i, ch); err != nil {
				return err
			}
		}
	}
	return nil
}

// startPeers returns when all listen.
func (r *callRun) startPeers(ctx context.Context) error {
	var ready []chan struct{}
	for i, host := range r.lab.Servers {
		cfg := calleeConfig{name: "other", listen: netip.AddrPortFrom(host.Addr4, callPort).String()}
		if i < len(r.cases) {
			c := &r.cases[i]
			cfg.name = c.name
			if cfg.status = c.health; cfg.status != 0 {
				cfg.health = netip.AddrPortFrom(host.Addr4, healthPort).String()
			}
		}
		listens := make(chan struct{})
		p, err := r.start(command{
			name: fmt.Sprintf("peer %q", cfg.name), ns: host.NS, args: cfg.args(),
			line: func([]byte) { close(listens) }, // its only line
		})
		if err != nil {
			return err
		}
		r.peers, ready = append(r.peers, p), append(ready, listens)
	}
	for i, p := range r.peers {
		if err := p.await(ctx, ready[i]); err != nil {
			return err
		}
	}
	return nil
}

// peerOf is where a channel of a case leads.
func (r *callRun) peerOf(n int, ch callChannel) netip.AddrPort {
	if ch.elsewhere {
		n = len(r.cases)
	}
	return netip.AddrPortFrom(r.lab.Servers[n].Addr4, callPort)
}

// open has the client open a channel and looks it up, as the kernel has it.
func (r *callRun) open(ctx context.Context, n int, ch callChannel) error {
	peer := r.peerOf(n, ch)
	if err := r.order(order{Do: orderOpen, Case: n, Name: ch.name, Peer: peer.String()}); err != nil {
		return err
	}
	var e callEvent
	select {
	case e = <-r.opened:
	case <-r.client.done:
		return r.client.ended()
	case <-ctx.Done():
		return fmt.Errorf("wait for the client's channel to %s: %w", peer, context.Cause(ctx))
	}
	local, err := netip.ParseAddrPort(e.Local)
	if err != nil {
		return fmt.Errorf("look at the client's channels: %w", err)
	}
	s, err := r.diag.Get(conn.ID{Family: 2, Local: local, Remote: peer})
	if err != nil {
		return fmt.Errorf("look at the client's channels: %w", err)
	}
	r.ids[channelKey{n, ch.name}] = s.ID
	return nil
}

// order tells the client what to do.
func (r *callRun) order(o order) error {
	if err := writeLine(r.client.in, o); err != nil {
		return fmt.Errorf("give order to the client: %w", err)
	}
	return nil
}

// heard takes a line from the client.
func (r *callRun) heard(line []byte) {
	var e callEvent
	if err := json.Unmarshal(line, &e); err != nil || e.Case < 0 || e.Case >= len(r.recs) {
		fmt.Fprintf(r.client.log, "not understood by the demo: %q\n", line)
		return
	}
	if e.Kind == eventOpened {
		r.opened <- e
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recs[e.Case].add(e, r.zero)
}

// stillThere returns whether the kernel still has a channel as connected.
func (r *callRun) stillThere(k channelKey) (bool, error) {
	s, err := r.diag.Get(r.ids[k])
	if errors.Is(err, sockdiag.ErrGone) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at the client's channels: %w", err)
	}
	return s.State == conn.Established, nil
}
