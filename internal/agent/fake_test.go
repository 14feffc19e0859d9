// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/prober"
	"github.com/sockhealth/sockhealth/internal/sockets"
)

// world is a namespace of made-up sockets, all to one peer, on the fake clock
// of a synctest bubble. It is Sockets, Prober and Kernel of the agent.
type world struct {
	t     *testing.T
	ns    *netns.NS
	start time.Time
	pol   *policy.Policy

	mu       sync.Mutex
	sockets  map[uint64]*fakeSocket
	walks    int // of Provoke
	provoked int // sockets, over all walks
	calmed   map[uint64]bool
	sent     int
	sendErr  error
	// astray: what is known of the way of segments of ours that are lost on another
	// than the connection's; leg: a proxy on this host answers for the peer,
	// legErr: nobody knows.
	astray    *prober.Sent
	leg       bool
	legErr    error
	held      chan struct{} // unless nil, what asks conntrack waits for it to close
	legs      int           // times asked
	backedOff bool          // no retransmission is due for long
	slept     time.Duration // by the machine
	// provokeErr is what Provoke returns: loader.ErrUnsupported before Linux 5.15.
	provokeErr error
	missed     bool // Calm reaches none
	spared     bool // Provoke reaches none: what gets lost would end them
	destroys   int
	// destroyErr is what Destroy returns; without one it removes the socket
	// unless it is deaf.
	destroyErr error
	deaf       bool
	destroying chan struct{} // unless nil, Destroy waits for it to close
	walkTime   time.Duration
	scans      int
	scanTime   time.Duration
	scanErr    error
	again      func(*fakeSocket) // before each look of Again
	againErr   error
	app        func() prober.AppOutcome
	asked      int
	// directions are what the listeners tell of every connection.
	directions    policy.Directions
	directionsErr error
	listed        int           // times they were asked
	listing       chan struct{} // unless nil, that waits for it to close
}

type fakeSocket struct {
	snap  conn.Snapshot
	heard time.Duration // last packet, since start of the clock
	data  time.Duration // last payload
	wrote time.Duration // when payload was last sent
	timer time.Duration // when the kernel asks by itself while data waits; 0: it does not
	// attempt is called at each attempt, counted from 1; true: it is answered.
	attempt  func(n int) bool
	attempts int
	due      *time.Timer // of a keepalive that was asked for
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ns, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	pol, err := policy.Parse("fake.yaml", []byte("version: 1\npeers: [{name: server, cidrs: [10.91.2.0/24]}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	return &world{t: t, ns: ns, start: time.Now(), pol: pol, sockets: make(map[uint64]*fakeSocket), calmed: make(map[uint64]bool)}
}

func (w *world) now() time.Duration { return time.Hour + time.Since(w.start) }

func (w *world) agent() *Agent {
	return New(Config{Kernel: w, Sockets: w, Prober: w, Apps: w, Now: w.now, Boot: w.boot, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
}

// add makes a socket that was last heard from a while ago.
func (w *world) add(cookie uint64, silent time.Duration, attempt func(n int) bool) conn.ID {
	id := conn.ID{Netns: w.ns.Inode(), Family: 2, Cookie: cookie,
		Local:  netip.AddrPortFrom(netip.MustParseAddr("10.91.1.2"), uint16(10000+cookie)),
		Remote: netip.MustParseAddrPort("10.91.2.2:7100")}
	w.sockets[cookie] = &fakeSocket{
		heard: w.now() - silent, data: w.now() - silent - time.Minute, wrote: w.now(), attempt: attempt,
		snap: conn.Snapshot{ID: id, State: conn.Established, HasRecord: true, DstDevUp: true, BytesReceived: 1,
			Record: conn.Record{Policy: 1, Direction: conn.Outbound}, Options: conn.Options{KeepAlive: true}},
	}
	return id
}

func (w *world) report(id conn.ID, age time.Duration) Report {
	return Report{Caller: Caller{NS: w.ns}, Local: id.Local, Peer: id.Remote, Sent: w.now() - age}
}

func (w *world) look(s *fakeSocket) conn.Snapshot {
	snap := s.snap
	snap.Taken = w.now()
	snap.PacketAge = w.now() - s.heard
	snap.DataAge = w.now() - s.data
	snap.SendAge = w.now() - s.wrote
	if s.timer > 0 {
		snap.Timer = max(s.timer-snap.Taken, 0) + time.Millisecond
	}
	snap.AckStamp = uint32(s.heard / (4 * time.Millisecond)) // ticks of HZ=250
	snap.DataStamp = uint32(s.data / (4 * time.Millisecond))
	return snap
}

// ask is one attempt; the kernel counts those that stay unanswered.
func (w *world) ask(s *fakeSocket, kernel bool) {
	s.attempts++
	if s.attempt != nil && s.attempt(s.attempts) {
		s.heard = w.now()
		s.snap.ProbesOut = 0
	} else if kernel {
		s.snap.ProbesOut++
	}
}

// keepalive leaves once the socket has been silent for a second.
func (w *world) keepalive(s *fakeSocket) {
	if s.due != nil {
		s.due.Stop()
	}
	if now := w.now(); now < s.heard+time.Second {
		s.due = time.AfterFunc(s.heard+time.Second-now, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.keepalive(s)
		})
		return
	}
	w.ask(s, true)
}

func (w *world) Get(_ *netns.NS, local, _ netip.AddrPort) (conn.Snapshot, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sockets {
		if s.snap.Local == local {
			return w.look(s), nil
		}
	}
	return conn.Snapshot{}, sockets.ErrGone
}

func (w *world) Again(_ *netns.NS, id conn.ID) (conn.Snapshot, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.againErr != nil {
		return conn.Snapshot{}, w.againErr
	}
	if s := w.sockets[id.Cookie]; s != nil {
		if w.again != nil {
			w.again(s)
		}
		return w.look(s), nil
	}
	return conn.Snapshot{}, sockets.ErrGone
}

func (w *world) Find(_ *netns.NS, local netip.AddrPort, cookie uint64) ([]conn.Snapshot, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var found []conn.Snapshot
	for _, s := range w.sockets {
		if (!local.IsValid() || s.snap.Local == local) && (cookie == 0 || s.snap.Cookie == cookie) {
			found = append(found, w.look(s))
		}
	}
	return found, nil
}

func (w *world) Scan(_ *netns.NS, fn func(conn.Snapshot) error) error {
	w.mu.Lock()
	took := w.scanTime
	w.mu.Unlock()
	time.Sleep(took) // of the fake clock
	w.mu.Lock()
	w.scans++
	if w.scanErr != nil {
		defer w.mu.Unlock()
		return w.scanErr
	}
	var all []conn.Snapshot
	for _, s := range w.sockets {
		all = append(all, w.look(s))
	}
	w.mu.Unlock()
	for _, s := range all {
		if err := fn(s); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) Provoke(_ *netns.NS, cookies []uint64) ([]uint64, error) {
	time.Sleep(w.walkTime) // of the fake clock
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.provokeErr != nil {
		return nil, w.provokeErr
	}
	w.walks++
	var reached []uint64
	for _, c := range cookies {
		if s := w.sockets[c]; s != nil && !w.spared {
			w.provoked++
			w.calmed[c] = false
			w.keepalive(s)
			reached = append(reached, c)
		}
	}
	return reached, nil
}

func (w *world) Calm(_ *netns.NS, cookies []uint64) ([]uint64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.missed {
		return nil, nil
	}
	for _, c := range cookies {
		w.calmed[c] = true
	}
	return cookies, nil
}

func (w *world) LocalLeg(*netns.NS, *conn.Snapshot) (bool, error) {
	w.track()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.legs++
	return w.leg, w.legErr
}

func (w *world) track() {
	if w.held != nil {
		<-w.held
	}
}

func (w *world) boot() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now() + w.slept
}

func (w *world) Send(_ *netns.NS, s *conn.Snapshot) (prober.Sent, error) {
	w.track()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sendErr != nil {
		return prober.Sent{}, w.sendErr
	}
	w.sent++
	if f := w.sockets[s.Cookie]; f != nil {
		w.ask(f, false)
		if f.snap.InFlight() && f.heard < w.now() && !w.backedOff {
			f.snap.Retransmits++ // the kernel's own timer
		}
	}
	if w.astray != nil {
		return *w.astray, nil
	}
	return prober.Sent{Certain: true}, nil
}

func (w *world) Destroy(_ *netns.NS, id conn.ID) error {
	if w.destroying != nil {
		<-w.destroying
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.destroys++
	if w.destroyErr == nil && !w.deaf {
		delete(w.sockets, id.Cookie)
	}
	return w.destroyErr
}

func (w *world) Ask(context.Context, *netns.NS, netip.AddrPort, *policy.AppProbe) prober.AppOutcome {
	w.asked++
	return w.app()
}

// destroyed returns how many were.
func (w *world) destroyed() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.destroys
}

func (w *world) Directions(*netns.NS) (func(*conn.ID) policy.Directions, error) {
	w.mu.Lock()
	w.listed++
	w.mu.Unlock()
	if w.listing != nil {
		<-w.listing
	}
	return func(*conn.ID) policy.Directions { return w.directions }, w.directionsErr
}

func (w *world) InForce() *loader.InForce {
	w.mu.Lock()
	defer w.mu.Unlock()
	return loader.NewInForce(w.pol, map[uint32]int{1: 0})
}
func (w *world) Counters() (map[string]loader.Counters, error) { return nil, nil }
func (w *world) Faults() ([]uint64, error)                     { return nil, nil }
