// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/policy"
)

// AppOutcome is what became of a question to an application. The zero value
// proves nothing.
type AppOutcome uint8

// The outcomes.
const (
	// AppNoConnection: there was no connection to speak of, so nothing is
	// known. It could not be opened (refused, unreachable, timed out, the
	// peer's accept queue full), or the peer's host never took the whole
	// question, or the way to it did not hold until the end of the wait, or
	// it ended, by FIN or by RST, before the first byte. Such an end may be
	// the application's refusal, its death, its kernel's or a middlebox's
	// doing; a hung application does not bring it about. A question that was
	// not asked or not waited for ends so, too.
	AppNoConnection AppOutcome = iota
	// AppAnswered: at least one byte came, whatever it says.
	AppAnswered
	// AppSilent: the peer's host acknowledged the whole question and stayed
	// within reach, and not one byte came within the timeout.
	AppSilent
)

// String returns "no_connection", "answered" or "silent".
func (o AppOutcome) String() string {
	switch o {
	case AppAnswered:
		return "answered"
	case AppSilent:
		return "silent"
	}
	return "no_connection"
}

// Limits of Apps.
const (
	// shared is how long a question and its outcome stand for every further
	// one of the same kind, counted from when it was asked.
	shared = 10 * time.Second
	// maxAsked questions are remembered, each with a descriptor of its
	// namespace; a further one is not asked.
	maxAsked = 1024
	// maxAsking connections are open at one time.
	maxAsking = 64
)

// Apps asks the applications at peers' addresses whether they still answer, and
// shares the answers. Use [NewApps], and Close when done.
type Apps struct {
	inquire   inquirer
	slept     func() time.Duration // how long the machine has slept since it came up
	userAgent string
	slots     chan struct{}
	running   sync.WaitGroup
	ctx       context.Context // ends with Close
	cancel    context.CancelFunc

	mu     sync.Mutex
	closed bool
	asked  map[question]*inquiry
}

// inquirer asks one question on a connection of its own. hangUp ends that
// connection, may take a moment, and is always to be called.
type inquirer func(ctx context.Context, ns *netns.NS, q question) (outcome AppOutcome, hangUp func())

// inquiry is a question under way, or its outcome.
type inquiry struct {
	// ns keeps the namespace alive as long as the inquiry is remembered:
	// nothing else may meanwhile be given the inode number that names it.
	ns      *netns.NS
	done    chan struct{} // closed once outcome is there
	outcome AppOutcome
	forget  *time.Timer // guarded by Apps.mu
}

// NewApps returns Apps that introduce themselves as sockhealth of a version,
// which may be empty.
func NewApps(version string) *Apps {
	a := &Apps{
		userAgent: "sockhealth",
		slots:     make(chan struct{}, maxAsking),
		asked:     make(map[question]*inquiry),
	}
	if version != "" {
		a.userAgent += "/" + version
	}
	a.inquire, a.slept = a.place, func() time.Duration { return conn.Boot() - conn.Now() }
	a.ctx, a.cancel = context.WithCancel(context.Background())
	return a
}

// Ask asks the application at the peer's address, or at p.Port there, on a new
// connection from inside ns, which it needs only until it returns. It takes at
// most two timeouts of the probe (one to wait for its turn) and 3 s (to
// connect), and returns AppNoConnection as soon as ctx ends.
//
// A question is the same for everyone who asks the same thing of the same
// address from the same namespace: it is asked at most once in 10 s, and not
// again before it has ended. Who asks meanwhile gets the outcome of that one,
// which ctx does not end. Who asks afterwards gets AppNoConnection in place of
// AppSilent: the application may have gone on since, and silence costs
// connections.
//
// Link-local addresses have no zone here and cannot be reached.
func (a *Apps) Ask(ctx context.Context, ns *netns.NS, peer netip.AddrPort, p *policy.AppProbe) AppOutcome {
	if ctx.Err() != nil {
		return AppNoConnection
	}
	i := a.join(ns, questionOf(ns, peer, p))
	if i == nil {
		return AppNoConnection
	}
	select {
	case <-i.done: // before this caller came
		if i.outcome == AppSilent {
			return AppNoConnection
		}
		return i.outcome
	default:
	}
	select {
	case <-i.done:
		return i.outcome
	case <-ctx.Done():
		return AppNoConnection
	}
}

// Close ends every question under way and waits until nothing of them is left.
// Ask returns AppNoConnection from then on.
func (a *Apps) Close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.cancel()
	a.running.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	for q, i := range a.asked {
		i.forget.Stop()
		a.remove(q, i)
	}
}

// join returns the inquiry that answers q, which it begins where there is none;
// nil where it cannot.
func (a *Apps) join(ns *netns.NS, q question) *inquiry {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := a.asked[q]; i != nil {
		return i
	}
	if a.closed || len(a.asked) >= maxAsked {
		return nil
	}
	held, err := ns.Dup()
	if err != nil {
		return nil
	}
	i := &inquiry{ns: held, done: make(chan struct{})}
	a.asked[q] = i
	a.running.Go(func() { a.run(q, i) })
	return i
}

// run asks q when its turn comes.
func (a *Apps) run(q question, i *inquiry) {
	if !a.turn(q.timeout) {
		a.conclude(q, i, AppNoConnection, shared)
		return
	}
	defer func() { <-a.slots }()
	begun := time.Now()
	outcome, hangUp := a.inquire(a.ctx, i.ns, q)
	a.conclude(q, i, outcome, shared-time.Since(begun))
	hangUp()
}

// turn waits for one of the connections that may be open at one time.
func (a *Apps) turn(patience time.Duration) bool {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case a.slots <- struct{}{}:
		return true
	case <-timer.C:
	case <-a.ctx.Done():
	}
	return false
}

// conclude tells everyone the outcome, and whoever asks within left.
func (a *Apps) conclude(q question, i *inquiry, outcome AppOutcome, left time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i.outcome = outcome
	close(i.done)
	i.forget = time.AfterFunc(max(left, 0), func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.remove(q, i)
	})
}

// remove forgets an inquiry, once. The caller holds the lock.
func (a *Apps) remove(q question, i *inquiry) {
	if a.asked[q] != i {
		return
	}
	delete(a.asked, q)
	_ = i.ns.Close() // cannot fail: it is open, and ours alone
}
