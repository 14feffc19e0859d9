// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/sockdiag"
)

// poolRun is one variant on its own bed. The first method that fails may leave
// things behind; close removes them in any case.
type poolRun struct {
	poolVariant
	stage *stage
	dir   string // its files
	undo  []func() error

	lab    *lab.Lab
	cgroup *lab.Cgroup // nil without an agent
	diag   *sockdiag.Conn
	client *process
	procs  []*process // all, the client included
	ready  chan event // of the client
	pool   []conn.ID  // the connections that will be stale
	fault  time.Duration

	mu  sync.Mutex // guards rec
	rec poolRecord
}

func newPoolRun(s *stage, i int, v poolVariant) *poolRun {
	return &poolRun{
		poolVariant: v, stage: s, dir: filepath.Join(s.dir, fmt.Sprintf("run%d", i)),
		ready: make(chan event, 1),
		rec:   poolRecord{gone: never},
	}
}

func (r *poolRun) later(fn func() error) { r.undo = append(r.undo, fn) }

// close ends the processes and removes the bed.
func (r *poolRun) close() error {
	var errs []error
	for i := len(r.undo) - 1; i >= 0; i-- {
		errs = append(errs, r.undo[i]())
	}
	r.undo = nil
	return errors.Join(errs...)
}

// setUp builds the bed and returns when the client's pool is open.
func (r *poolRun) setUp(ctx context.Context) error {
	if err := os.Mkdir(r.dir, 0o755); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	var err error
	if r.lab, err = lab.New(lab.Options{Servers: 2}); err != nil {
		return err
	}
	r.later(r.lab.Close)
	if r.diag, err = sockdiag.Dial(r.lab.Client); err != nil {
		return err
	}
	r.later(r.diag.Close)
	if err := pointName(r.names(), r.lab.Servers[0].Addr4); err != nil {
		return err
	}
	for i, name := range []string{"peer", "replacement"} {
		if err := r.startPeer(ctx, name, r.lab.Servers[i]); err != nil {
			return err
		}
	}
	if r.agent {
		if err := r.startAgent(ctx); err != nil {
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

// start starts a process that close ends.
func (r *poolRun) start(c command) (*process, error) {
	c.name += fmt.Sprintf(" of %q, first request at %s", r.name, r.first)
	p, err := r.stage.spawner.start(c)
	if err != nil {
		return nil, err
	}
	r.procs = append(r.procs, p)
	r.later(func() error { p.stop(); return nil })
	return p, nil
}

func (r *poolRun) startPeer(ctx context.Context, name string, host lab.Host) error {
	ready := make(chan struct{})
	p, err := r.start(command{
		name: name, ns: host.NS,
		args: []string{PeerCommand, "--name", name, "--listen", netip.AddrPortFrom(host.Addr4, poolPort).String()},
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
		cfg.socket = filepath.Join(r.runDir(), "report.sock")
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

// died returns the error of a process that ended before its time.
func (r *poolRun) died() error {
	for _, p := range r.procs {
		if p.hasEnded() {
			return p.ended()
		}
	}
	return nil
}
