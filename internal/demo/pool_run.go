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

// poolRun is one variant on its own bed.
type poolRun struct {
	poolVariant
	bed

	client *process
	ready  chan event // of the client
	pool   []conn.ID  // the connections that will be stale
	fault  time.Duration

	mu  sync.Mutex // guards rec
	rec poolRecord
}

func newPoolRun(s *stage, i int, v poolVariant) *poolRun {
	return &poolRun{
		poolVariant: v,
		bed: bed{
			stage: s, dir: filepath.Join(s.dir, fmt.Sprintf("pool%d", i)),
			title: fmt.Sprintf("%q, first request at %s", v.name, v.first),
		},
		ready: make(chan event, 1),
		rec:   poolRecord{gone: never},
	}
}

// setUp builds the bed and returns when the client's pool is open.
func (r *poolRun) setUp(ctx context.Context) error {
	if err := r.build(2); err != nil {
		return err
	}
	if err := pointName(r.names(), r.lab.Servers[0].Addr4); err != nil {
		return err
	}
	for i, name := range []string{"peer", "replacement"} {
		if err := r.startPeer(ctx, name, r.lab.Servers[i]); err != nil {
			return err
		}
	}
	if r.agent {
		if err := r.startAgent(ctx, poolPolicy); err != nil {
			return err
		}
	}
	if err := r.startClient(ctx); err != nil {
		return err
	}
	return r.sawPool()
}

// names is the file in which the client looks its peer up.
func (r *poolRun) names() string { return filepath.Join(r.dir, "hosts") }

func (r *poolRun) startPeer(ctx context.Context, name string, host lab.Host) error {
	ready := make(chan struct{})
	p, err := r.start(command{
		name: name, ns: host.NS,
		args: []string{PeerCommand, poolName, "--name", name, "--listen", netip.AddrPortFrom(host.Addr4, poolPort).String()},
		line: func([]byte) { close(ready) }, // its only line
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return p.await(ctx, ready)
}

func (r *poolRun) startClient(ctx context.Context) error {
	cfg := clientConfig{names: r.names(), patience: r.patience}
	if r.bound != nil {
		cfg.bound = *r.bound
	}
	if r.reports {
		cfg.socket = r.reportSocket()
	}
	ready := make(chan struct{})
	var err error
	r.client, err = r.start(command{
		name: "client", ns: r.lab.Client, cgroup: r.cgroup, args: cfg.args(),
		line: func(line []byte) { r.heard(line, ready) },
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return r.client.await(ctx, ready)
}

// heard takes a line from the client.
func (r *poolRun) heard(line []byte, ready chan struct{}) {
	var e event
	if err := json.Unmarshal(line, &e); err != nil {
		fmt.Fprintf(r.client.log, "not understood by the demo: %q\n", line)
		return
	}
	switch e.Kind {
	case eventReady:
		r.ready <- e
		close(ready)
	case eventSent, eventDone:
		r.mu.Lock()
		defer r.mu.Unlock()
		r.rec.add(e, r.fault)
	}
}

// add takes an event of the client into the record.
func (rec *poolRecord) add(e event, fault time.Duration) {
	at := e.At - fault
	if at > poolWatch {
		return // nobody watches any more
	}
	if e.Kind == eventSent {
		rec.requests = append(rec.requests, Request{Sent: at, Took: never})
		return
	}
	if len(rec.requests) == 0 {
		return
	}
	last := &rec.requests[len(rec.requests)-1]
	last.Took = at - last.Sent
	rec.late = max(rec.late, e.Late)
	last.Err, last.Server, last.Local = e.Err, e.Server, e.Local
	if last.Err == "" && last.Server != "replacement" {
		last.Err = fmt.Sprintf("answered by %q", last.Server)
	}
}

// sawPool looks the client's connections up, as the kernel has them.
func (r *poolRun) sawPool() error {
	e := <-r.ready
	peer := netip.AddrPortFrom(r.lab.Servers[0].Addr4, poolPort)
	seen := make(map[uint64]bool)
	for _, local := range e.Pool {
		addr, err := netip.ParseAddrPort(local)
		if err != nil {
			return fmt.Errorf("look at the client's pool: %w", err)
		}
		s, err := r.diag.Get(conn.ID{Family: 2, Local: addr, Remote: peer})
		if err != nil {
			return fmt.Errorf("look at the client's pool: %w", err)
		}
		seen[s.Cookie] = true
		r.pool = append(r.pool, s.ID)
	}
	if len(seen) != poolConns {
		return fmt.Errorf("look at the client's pool: %d connections, want %d", len(seen), poolConns)
	}
	return nil
}

// strike drops all traffic to the peer, points its name at the replacement, and
// tells the client when to go on.
func (r *poolRun) strike() error {
	peer := lab.Only(r.lab.Servers[0].Addr4)
	if _, err := r.lab.Drop(lab.Match{Dst: peer, Both: true}); err != nil {
		return err
	}
	r.mu.Lock()
	r.fault = conn.Now()
	r.mu.Unlock()
	if err := pointName(r.names(), r.lab.Servers[1].Addr4); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(r.client.in, "%d\n", r.fault+r.first); err != nil {
		return fmt.Errorf("tell the client when to begin: %w", err)
	}
	return nil
}

// left returns how many connections of the pool are still ESTABLISHED with the
// old peer.
func (r *poolRun) left() (int, error) {
	n := 0
	for _, id := range r.pool {
		s, err := r.diag.Get(id)
		if errors.Is(err, sockdiag.ErrGone) {
			continue
		}
		if err != nil {
			return 0, err
		}
		if s.State == conn.Established {
			n++
		}
	}
	return n, nil
}

// look takes what the kernel says into the record.
func (r *poolRun) look() error {
	n, err := r.left()
	if err != nil {
		return fmt.Errorf("look at the client's connections: %w", err)
	}
	at := conn.Now() - r.fault // after the look: they were gone by then
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rec.stale = n
	if n == 0 && r.rec.gone < 0 {
		r.rec.gone = at
	}
	return nil
}

// record returns a copy of what was seen so far.
func (r *poolRun) record() poolRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.rec
	rec.requests = append([]Request(nil), r.rec.requests...)
	return rec
}
