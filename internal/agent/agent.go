// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/container"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/policy"
	"github.com/sockhealth/sockhealth/internal/prober"
)

// The errors that callers of Judge tell apart.
var (
	// ErrForbidden says that the agent does not act in the caller's namespace.
	ErrForbidden = errors.New("network namespace not covered by this agent")
	// ErrBusy says that MaxJudgements or MaxOwned are under way, or maxWalks over one
	// namespace; try again later.
	ErrBusy = errors.New("too many judgements under way")
	// ErrStopped says that the agent is being closed.
	ErrStopped = errors.New("agent is stopping")
)

// MaxJudgements bounds the judgements under way at one time, MaxOwned those
// about the sockets of one user in one namespace.
const (
	MaxJudgements = 20000
	MaxOwned      = MaxJudgements / 4
)

// Kernel is what the agent asks the BPF programs.
type Kernel interface {
	InForce() *loader.InForce
	Counters() (map[string]loader.Counters, error)
	Faults() ([]uint64, error)
}

// Sockets reads, provokes and closes sockets. Errors wrap sockets.ErrGone where
// the socket is not, or no longer, what the ID names.
type Sockets interface {
	// Get returns the connection with this local and remote address.
	Get(ns *netns.NS, local, remote netip.AddrPort) (conn.Snapshot, error)
	// Again looks at the same socket once more.
	Again(ns *netns.NS, id conn.ID) (conn.Snapshot, error)
	// Find returns the connections with this local address or cookie; the one
	// that is not given is the zero value.
	Find(ns *netns.NS, local netip.AddrPort, cookie uint64) ([]conn.Snapshot, error)
	// Scan calls fn for every connection of the namespace.
	Scan(ns *netns.NS, fn func(conn.Snapshot) error) error
	// Provoke makes the kernel send keepalives on these sockets now, Calm
	// ends that. Both return the cookies of those they reached.
	Provoke(ns *netns.NS, cookies []uint64) ([]uint64, error)
	Calm(ns *netns.NS, cookies []uint64) ([]uint64, error)
	// Destroy closes exactly that socket.
	Destroy(ns *netns.NS, id conn.ID) error
	// Directions returns what tells who may have opened a connection, by the listeners
	// that there are now.
	Directions(ns *netns.NS) (func(*conn.ID) policy.Directions, error)
	// LocalLeg reports whether a proxy of the namespace answers for the peer.
	LocalLeg(ns *netns.NS, s *conn.Snapshot) (bool, error)
}

// Prober sends one segment of the connection, and reports whether it certainly
// takes the connection's way. Its errors wrap prober.ErrBlocked, and prober.ErrNoRoute
// with or without prober.ErrLinkDown.
type Prober interface {
	Send(ns *netns.NS, s *conn.Snapshot) (prober.Sent, error)
}

// Apps asks applications. It shares what it learns between those who ask.
type Apps interface {
	Ask(ctx context.Context, ns *netns.NS, peer netip.AddrPort, p *policy.AppProbe) prober.AppOutcome
}

// Containers knows the node's containers by the ids of their cgroups
// (census.Census). The zero value names none.
type Containers interface {
	Of(cgroup uint64) container.ID
}

// Config is what New needs. Every field but Containers, Seen, Covers, Namespaces, Boot
// and CPU is required.
type Config struct {
	Kernel  Kernel
	Sockets Sockets
	Prober  Prober
	Apps    Apps
	Log     *slog.Logger
	// Containers tells which container a cgroup is; nil: nobody knows.
	Containers Containers
	// Seen hears of every network namespace that a report or an event comes from;
	// nil: nobody asks. It must not block.
	Seen func(inode uint32)
	// Covers tells by its inode whether to act in a namespace; nil means in all.
	Covers func(inode uint32) bool
	// Namespaces are where other peers are looked for when a path seems dead; nil: in
	// the connection's own namespace alone.
	Namespaces Namespaces
	// Now is CLOCK_MONOTONIC (conn.Now).
	Now func() time.Duration
	// Boot is CLOCK_BOOTTIME (conn.Boot), which goes on while the machine sleeps;
	// nil: Now.
	Boot func() time.Duration
	// CPU is what the calling thread has taken (conn.ThreadCPU); nil: Now.
	CPU func() time.Duration
}

// Agent judges connections. Use New.
type Agent struct {
	Config
	// ctx ends with Close; work holds every goroutine.
	ctx     context.Context
	stop    context.CancelFunc
	work    sync.WaitGroup
	stats   stats
	calls   rounds
	journal journal
	handles handles
	queue   queue
	outlook outlook
	turns   chan struct{} // a place for each look
	sends   chan struct{} // a place for each send
	legs    chan struct{} // a place for each question who answers for a peer
	// complained is when the log was last told that one failed; 0: never.
	complained atomic.Int64

	// mu guards what is under way. It is taken last: whoever holds queue.mu or
	// outlook.mu may take it (to start, stay or leave), and who holds it takes none of
	// them, but handles.mu and endMu of a judgement, whose closing comes before all.
	mu         sync.Mutex
	stopped    bool
	judgements map[key]*judgement
	sweeps     map[sweepKey]bool
	sweeping   map[uint32]kin        // sweeps that wait for a walk, by namespace; nil: nobody walks
	limits     map[key]time.Duration // the newest call that waits for its silent limit
	limited    map[owner]int         // those, by whose sockets they are
	watched    map[key]bool          // observed instead of closed
	ends       map[key][]*judgement  // who wants to know how a socket ends
	owners     map[owner]int         // judgements by whose sockets they are about
	walks      map[uint32]*places    // that look for sockets, by namespace
	asking     map[uint32]*listening // for listeners, by namespace
}

// owner is whose sockets they are: a user in a namespace.
type owner struct {
	netns, uid uint32
}

// key names a socket under judgement. Cookies are unique on the host.
type key struct {
	netns  uint32
	cookie uint64
}

// New returns an agent that waits for reports. Close ends it.
func New(c Config) *Agent {
	a := &Agent{
		Config:     c,
		judgements: make(map[key]*judgement),
		sweeps:     make(map[sweepKey]bool),
		sweeping:   make(map[uint32]kin),
		limits:     make(map[key]time.Duration),
		limited:    make(map[owner]int),
		watched:    make(map[key]bool),
		ends:       make(map[key][]*judgement),
		owners:     make(map[owner]int),
		walks:      make(map[uint32]*places),
		asking:     make(map[uint32]*listening),
		turns:      make(chan struct{}, maxCalls),
		sends:      make(chan struct{}, maxTracks),
		legs:       make(chan struct{}, maxTracks),
	}
	if a.Boot == nil {
		a.Boot = a.Now
	}
	if a.CPU == nil {
		a.CPU = a.Now
	}
	a.ctx, a.stop = context.WithCancel(context.Background())
	a.calls.sockets, a.calls.handles = c.Sockets, &a.handles
	return a
}

// Close ends every judgement under way without acting on it, puts back what
// probes changed, and waits for the goroutines. It may be called again.
func (a *Agent) Close() {
	a.mu.Lock()
	a.stopped = true
	a.mu.Unlock()
	a.stop()
	a.work.Wait()
}

// start runs fn in a goroutine that Close waits for; false: already stopping.
// The caller does not hold mu.
func (a *Agent) start(fn func()) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped {
		return false
	}
	a.work.Go(fn)
	return true
}

// container names the container that a cgroup is, where it is one.
func (a *Agent) container(cgroup uint64) container.ID {
	if a.Containers == nil || cgroup == 0 {
		return container.ID{}
	}
	return a.Containers.Of(cgroup)
}

// seen tells of a namespace where something happened.
func (a *Agent) seen(inode uint32) {
	if a.Seen != nil {
		a.Seen(inode)
	}
}

// covers reports whether the agent acts in a namespace.
func (a *Agent) covers(ns *netns.NS) bool {
	return a.Covers == nil || a.Covers(ns.Inode())
}
