// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/policy"
)

var somePeer = netip.MustParseAddrPort("10.91.2.2:7100")

func probeHTTP(timeout time.Duration) *policy.AppProbe {
	return &policy.AppProbe{Kind: policy.AppHTTP, Path: "/", Timeout: timeout}
}

// played are Apps whose applications are played by the test.
type played struct {
	*Apps
	ns             *netns.NS
	asked, hungUp  atomic.Int32
	count          sync.Mutex
	open, mostOpen int
}

// play makes applications answer with outcome after a time.
func play(t *testing.T, outcome AppOutcome, after time.Duration) *played {
	t.Helper()
	p := &played{Apps: NewApps(""), ns: here(t)}
	t.Cleanup(p.Close)
	p.inquire = func(ctx context.Context, ns *netns.NS, _ question) (AppOutcome, func()) {
		p.asked.Add(1)
		p.opened(1)
		defer func() {
			p.opened(-1)
			if ns.FD() < 0 {
				t.Error("the namespace was let go of before the question's end")
			}
		}()
		select {
		case <-time.After(after):
		case <-ctx.Done():
			return AppNoConnection, func() { p.hungUp.Add(1) }
		}
		return outcome, func() { p.hungUp.Add(1) }
	}
	return p
}

func (p *played) opened(n int) {
	p.count.Lock()
	defer p.count.Unlock()
	p.open += n
	p.mostOpen = max(p.mostOpen, p.open)
}

// here is this process's namespace.
func here(t testing.TB) *netns.NS {
	t.Helper()
	ns, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	return ns
}

func (p *played) ask(t *testing.T, peer netip.AddrPort, probe *policy.AppProbe, want AppOutcome) {
	t.Helper()
	if got := p.Ask(t.Context(), p.ns, peer, probe); got != want {
		t.Errorf("outcome %s, want %s", got, want)
	}
}

func (p *played) wantAsked(t *testing.T, want int32, when string) {
	t.Helper()
	if got := p.asked.Load(); got != want {
		t.Errorf("%s: %d questions asked, want %d", when, got, want)
	}
}

func (p *played) remembered() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.Apps.asked)
}

func TestOutcomeStandsForTenSeconds(t *testing.T) {
	for _, outcome := range []AppOutcome{AppNoConnection, AppAnswered, AppSilent} {
		t.Run(outcome.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := play(t, outcome, 3*time.Second)
				p.ask(t, somePeer, probeHTTP(3*time.Second), outcome)
				time.Sleep(shared - 3*time.Second - time.Nanosecond) // since the question was put
				later := outcome
				if outcome == AppSilent { // it may have gone on since
					later = AppNoConnection
				}
				p.ask(t, somePeer, probeHTTP(3*time.Second), later)
				p.wantAsked(t, 1, "within ten seconds")
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				p.ask(t, somePeer, probeHTTP(3*time.Second), outcome)
				p.wantAsked(t, 2, "after ten seconds")
				time.Sleep(time.Hour)
				synctest.Wait()
				if n := p.remembered(); n != 0 {
					t.Errorf("%d questions remembered for ever", n)
				}
			})
		})
	}
}

// A question that takes longer than outcomes stand is still asked once at a time.
func TestLongQuestionIsJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := play(t, AppSilent, 30*time.Second)
		var all sync.WaitGroup
		for range 29 {
			all.Go(func() { p.ask(t, somePeer, probeHTTP(30*time.Second), AppSilent) })
			time.Sleep(time.Second)
		}
		all.Wait()
		p.wantAsked(t, 1, "under way")
		synctest.Wait()
		p.ask(t, somePeer, probeHTTP(30*time.Second), AppSilent)
		p.wantAsked(t, 2, "after its end")
	})
}

func TestWhichQuestionsAreTheSame(t *testing.T) {
	base := policy.AppProbe{Kind: policy.AppHTTP, Path: "/", Timeout: time.Second}
	change := func(edit func(*policy.AppProbe)) *policy.AppProbe {
		p := base
		edit(&p)
		return &p
	}
	for what, tt := range map[string]struct {
		peer  string
		probe *policy.AppProbe
		same  bool
	}{
		"the same":         {"10.91.2.2:7100", &base, true},
		"on_hung":          {"10.91.2.2:7100", change(func(p *policy.AppProbe) { p.CloseHung = true }), true},
		"the port named":   {"10.91.2.2:9", change(func(p *policy.AppProbe) { p.Port = 7100 }), true},
		"mapped address":   {"[::ffff:10.91.2.2]:7100", &base, true},
		"another's fields": {"10.91.2.2:7100", change(func(p *policy.AppProbe) { p.Service, p.Send = "s", []byte("s") }), true},
		"another port":     {"10.91.2.2:7101", &base, false},
		"another address":  {"10.91.2.3:7100", &base, false},
		"another path":     {"10.91.2.2:7100", change(func(p *policy.AppProbe) { p.Path = "/x" }), false},
		"another kind":     {"10.91.2.2:7100", change(func(p *policy.AppProbe) { p.Kind, p.Service = policy.AppGRPC, "/" }), false},
		"another timeout":  {"10.91.2.2:7100", change(func(p *policy.AppProbe) { p.Timeout++ }), false},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := play(t, AppAnswered, time.Millisecond)
				p.ask(t, somePeer, &base, AppAnswered)
				p.ask(t, netip.MustParseAddrPort(tt.peer), tt.probe, AppAnswered)
				p.wantAsked(t, map[bool]int32{true: 1, false: 2}[tt.same], what)
			})
		})
	}
}

// Two namespaces may have the same address for different hosts.
func TestNamespacesDoNotShare(t *testing.T) {
	p := play(t, AppAnswered, 0)
	p.ask(t, somePeer, probeHTTP(time.Second), AppAnswered)
	p.ns = labtest.Netns(t)
	p.ask(t, somePeer, probeHTTP(time.Second), AppAnswered)
	p.wantAsked(t, 2, "in two namespaces")
}

// The kernel gives the inode number of a namespace that ended to the next one.
func TestNamespaceIsHeldAsLongAsItsOutcome(t *testing.T) {
	labtest.Root(t)
	labtest.NoLeak(t)
	p := play(t, AppAnswered, 0)
	for range 50 {
		ns, err := netns.New()
		if err != nil {
			t.Fatal(err)
		}
		p.Ask(t.Context(), ns, somePeer, probeHTTP(time.Second))
		_ = ns.Close()
	}
	p.wantAsked(t, 50, "in 50 namespaces, one after the other")
}

func TestAskerMayLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := play(t, AppSilent, 5*time.Second)
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		begun := time.Now()
		borrowed := here(t)
		if got := p.Ask(ctx, borrowed, somePeer, probeHTTP(5*time.Second)); got != AppNoConnection {
			t.Errorf("outcome %s for an asker who left, want no_connection", got)
		}
		if waited := time.Since(begun); waited != time.Second {
			t.Errorf("the asker could leave after %s, want 1s", waited)
		}
		_ = borrowed.Close() // whoever lent it has it back
		p.ask(t, somePeer, probeHTTP(5*time.Second), AppSilent)
		p.wantAsked(t, 1, "by one who left and one who stayed")
		if got := p.Ask(ctx, p.ns, netip.MustParseAddrPort("10.91.2.9:1"), probeHTTP(time.Second)); got != AppNoConnection {
			t.Errorf("outcome %s for an asker who is not there, want no_connection", got)
		}
		p.wantAsked(t, 1, "by one who is not there")
	})
}

// peers are that many, each different.
func peers(n int) []netip.AddrPort {
	list := make([]netip.AddrPort, n)
	for i := range list {
		list[i] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 91, byte(i >> 8), byte(i)}), 7100)
	}
	return list
}

// askAll asks about every peer at once and counts the outcomes.
func (p *played) askAll(t *testing.T, list []netip.AddrPort, timeout time.Duration) map[AppOutcome]int {
	var mu sync.Mutex
	var all sync.WaitGroup
	got := map[AppOutcome]int{}
	for _, peer := range list {
		all.Go(func() {
			o := p.Ask(t.Context(), p.ns, peer, probeHTTP(timeout))
			mu.Lock()
			defer mu.Unlock()
			got[o]++
		})
	}
	all.Wait()
	return got
}

func TestConnectionsOpenAtOneTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := play(t, AppAnswered, time.Second)
		if got := p.askAll(t, peers(5*maxAsking), 10*time.Second); got[AppAnswered] != 5*maxAsking {
			t.Errorf("outcomes %v, want all answered", got)
		}
		if p.mostOpen != maxAsking {
			t.Errorf("%d connections open at one time, want %d", p.mostOpen, maxAsking)
		}
	})
}

// Whoever waits in vain for his turn asks nothing, and learns nothing.
func TestTurnNeverComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := play(t, AppSilent, 20*time.Second)
		begun := time.Now()
		got := p.askAll(t, peers(2*maxAsking), 10*time.Second)
		if got[AppSilent] != maxAsking || got[AppNoConnection] != maxAsking {
			t.Errorf("outcomes %v, want %d silent and as many no_connection", got, maxAsking)
		}
		if took := time.Since(begun); took != 20*time.Second {
			t.Errorf("it took %s, want 20s", took)
		}
		p.wantAsked(t, maxAsking, "in turn")
	})
}

func TestMemoryIsBounded(t *testing.T) {
	labtest.NoLeak(t)
	synctest.Test(t, func(t *testing.T) {
		p := play(t, AppAnswered, time.Millisecond)
		got := p.askAll(t, peers(2*maxAsked), time.Hour)
		if got[AppAnswered] != maxAsked || got[AppNoConnection] != maxAsked || p.remembered() != maxAsked {
			t.Errorf("outcomes %v, %d remembered, want %d of each", got, p.remembered(), maxAsked)
		}
		time.Sleep(shared)
		synctest.Wait()
		if n := p.remembered(); n != 0 {
			t.Errorf("%d questions remembered after their time", n)
		}
		p.ask(t, somePeer, probeHTTP(time.Second), AppAnswered)
	})
}

func TestCloseEndsEveryQuestion(t *testing.T) {
	labtest.NoLeak(t)
	synctest.Test(t, func(t *testing.T) {
		p := play(t, AppSilent, time.Hour)
		begun := time.Now()
		time.AfterFunc(time.Second, p.Close)
		if got := p.askAll(t, peers(2*maxAsking), time.Hour); got[AppNoConnection] != 2*maxAsking {
			t.Errorf("outcomes %v, want no_connection alone", got)
		}
		if took := time.Since(begun); took != time.Second {
			t.Errorf("it took %s, want 1s", took)
		}
		p.Close()
		p.ask(t, netip.MustParseAddrPort("10.91.9.9:1"), probeHTTP(time.Second), AppNoConnection)
		p.wantAsked(t, maxAsking, "in all")
		if hung := p.hungUp.Load(); hung != maxAsking {
			t.Errorf("%d connections of %d ended", hung, maxAsking)
		}
	})
}
