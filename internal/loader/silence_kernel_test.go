// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// silent is a policy with a silence of a second, whose bounds never strike first.
const silent = `version: 1
defaults:
  user_timeout: 60s
  keepalive: {idle: 30s, interval: 5s, count: 5}
  silence: 1s
peers:
  - {name: server, cidrs: [10.91.2.0/24], direction: outbound}
  - {name: client, cidrs: [10.91.1.0/24], direction: inbound}
`

// talk is one connection of a silence test.
type talk struct {
	client, server *net.TCPConn
}

// say sends from one end and waits until the other has it.
func say(t *testing.T, from, to *net.TCPConn, text string) {
	t.Helper()
	if _, err := from.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	to.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadFull(to, make([]byte, len(text))); err != nil {
		t.Fatal(err)
	}
}

// watched is a bed of connections, and the suspects that its passes found.
type watched struct {
	*loadertest.Bed
	found map[conn.ID][]loader.Suspect // by the addresses alone
	first map[conn.ID]time.Time        // when each was found first
}

func watch(t *testing.T, policyText string) *watched {
	w := &watched{Bed: loadertest.New(t, policyText)}
	loadertest.Need(t, w.Programs, kernel.Silence)
	w.found, w.first = make(map[conn.ID][]loader.Suspect), make(map[conn.ID]time.Time)
	return w
}

// pass makes one pass.
func (w *watched) pass(t *testing.T) loader.SilencePass {
	t.Helper()
	pass, err := w.Programs.Silent(func(s loader.Suspect) {
		k := conn.ID{Local: s.Local, Remote: s.Remote}
		if w.found[k] == nil {
			w.first[k] = time.Now()
		}
		w.found[k] = append(w.found[k], s)
	})
	if err != nil {
		t.Fatal(err)
	}
	return pass
}

// of are the suspects on one end of a connection so far.
func (w *watched) of(c *net.TCPConn) []loader.Suspect {
	return w.found[conn.ID{Local: labtest.Addr(c.LocalAddr()), Remote: labtest.Addr(c.RemoteAddr())}]
}

func (w *watched) talk(t *testing.T) talk {
	t.Helper()
	c, s := labtest.Pair(t, w.Lab, 0)
	return talk{c, s}
}

// lost is a connection whose path is gone.
func (w *watched) lost(t *testing.T) talk {
	t.Helper()
	k := w.talk(t)
	say(t, k.client, k.server, "request")
	say(t, k.server, k.client, "answer")
	labtest.Fault(t)(w.StateLoss(labtest.Addr(k.client.LocalAddr()), labtest.Addr(k.client.RemoteAddr())))
	return k
}

// TestSilent: who waits for an answer is suspected, and nobody else; once, until
// the request is twice as old.
func TestSilent(t *testing.T) {
	w := watch(t, silent)
	fresh, answered, later, pushed, closing := w.talk(t), w.talk(t), w.talk(t), w.talk(t), w.talk(t)
	say(t, answered.client, answered.server, "request")
	say(t, answered.server, answered.client, "answer")
	say(t, pushed.server, pushed.client, "news")
	say(t, later.client, later.server, "request")
	settled(t, 50*time.Millisecond) // some ticks
	say(t, later.server, later.client, "answer")
	say(t, closing.client, closing.server, "request")
	say(t, closing.server, closing.client, "answer")
	closing.server.CloseWrite()
	labtest.Eventually(t, 10*time.Second, func() bool { return labtest.State(t, closing.client) == conn.CloseWait }, "the FIN")
	settled(t, 50*time.Millisecond)
	say(t, closing.client, closing.server, "request") // which nobody can answer any more
	waits, again, flight, back, orphan := w.talk(t), w.talk(t), w.lost(t), w.lost(t), w.lost(t)
	orphan.client.Write([]byte("request"))
	orphan.client.Close()
	say(t, waits.client, waits.server, "request")
	say(t, again.client, again.server, "short call")
	say(t, again.server, again.client, "answer")
	say(t, again.client, again.server, "long call") // in the same tick, likely
	began := time.Now()
	flight.client.Write([]byte("request"))
	back.server.Write([]byte("answer"))
	labtest.Eventually(t, 20*time.Second, func() bool {
		w.pass(t)
		return len(w.of(waits.client)) > 1 && len(w.of(again.client)) > 1 && len(w.of(flight.client)) > 1 && len(w.of(back.server)) > 1
	}, "each suspected twice")
	took := time.Since(began)
	for name, c := range map[string]*net.TCPConn{
		"fresh": fresh.client, "fresh, inbound": fresh.server, "answered": answered.client, "answered, inbound": answered.server,
		"answered later": later.client, "pushed": pushed.client, "pushed, inbound": pushed.server, "closed by its peer": closing.client,
		"waits, inbound": waits.server, "again, inbound": again.server, "lost, inbound": flight.server, "back, outbound": back.client,
		"orphan": orphan.client,
	} {
		if n := len(w.of(c)); n != 0 {
			t.Errorf("%s: suspected %d times", name, n)
		}
	}
	// A retransmission is no new request.
	one := w.of(flight.client)[0]
	if out := w.first[conn.ID{Local: one.Local, Remote: one.Remote}].Sub(began); one.Request < out*2/3 {
		t.Errorf("flight: the request is out for %v, found as %v", out, one.Request)
	}
	for _, one := range []struct {
		name   string
		c      *net.TCPConn
		flight bool
	}{{"waits", waits.client, false}, {"again", again.client, false}, {"flight", flight.client, true}, {"back", back.server, true}} {
		w.wantSuspected(t, one.name, one.c, one.flight, took)
	}
}

// wantSuspected: the requests of c were found each time that they were twice as old;
// took is how long the passes took.
func (w *watched) wantSuspected(t *testing.T, name string, c *net.TCPConn, flight bool, took time.Duration) {
	t.Helper()
	found := w.of(c)
	for i, s := range found {
		least := time.Second << i
		if s.Asked != i || s.InFlight != flight || s.Request < least || s.Request > took+time.Second || s.Heard < time.Second || s.Cookie == 0 || s.Policy == 0 {
			t.Errorf("%s: asked %d, in flight %t, out %v, heard %v, policy %d: want the request out for %v", name, s.Asked, s.InFlight, s.Request, s.Heard, s.Policy, least)
		}
	}
	if len(found) > 3 {
		t.Errorf("%s: suspected %d times in %v", name, len(found), took)
	}
}

// TestSilentBeginsAnew: with payload the count of a connection begins anew, and its
// request is as old as the last.
func TestSilentBeginsAnew(t *testing.T) {
	w := watch(t, silent)
	k := w.talk(t)
	say(t, k.client, k.server, "request")
	await := func(n int) {
		t.Helper()
		labtest.Eventually(t, 10*time.Second, func() bool { w.pass(t); return len(w.of(k.client)) == n }, "suspected")
	}
	await(1)
	say(t, k.server, k.client, "answer")
	say(t, k.client, k.server, "another")
	await(2)
	if s := w.of(k.client)[1]; s.Asked != 0 || s.Request > 5*time.Second {
		t.Errorf("got %+v", s)
	}
}

// TestSilentOneWay: on a connection that only sends, data that is acknowledged ends what
// is remembered, as payload does elsewhere: the next outage is suspected as the first is.
func TestSilentOneWay(t *testing.T) {
	w := watch(t, silent)
	k := w.talk(t)
	suspected := func(n int) *loader.Suspect {
		t.Helper()
		fault := labtest.Fault(t)(w.StateLoss(labtest.Addr(k.client.LocalAddr()), labtest.Addr(k.client.RemoteAddr())))
		k.client.Write([]byte("news"))
		labtest.Eventually(t, 20*time.Second, func() bool { w.pass(t); return len(w.of(k.client)) >= n }, "suspected")
		labtest.Heal(t, fault)
		if _, err := io.ReadFull(k.server, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
		return &w.of(k.client)[n-1]
	}
	suspected(2)
	before := len(w.of(k.client))
	if s := suspected(before + 1); s.Asked != 0 || !s.InFlight {
		t.Errorf("suspected %+v", s)
	}
}

// TestSilentNewRequest: one that is acknowledged does not make the next one old,
// also where no pass saw the time between.
func TestSilentNewRequest(t *testing.T) {
	w := watch(t, silent)
	k := w.talk(t)
	say(t, k.client, k.server, "request")
	say(t, k.server, k.client, "answer")
	ends := []netip.AddrPort{labtest.Addr(k.client.LocalAddr()), labtest.Addr(k.client.RemoteAddr())}
	fault := labtest.Fault(t)(w.StateLoss(ends[0], ends[1]))
	k.client.Write([]byte("another"))
	w.pass(t)
	labtest.Heal(t, fault)
	if _, err := io.ReadFull(k.server, make([]byte, 7)); err != nil {
		t.Fatal(err)
	}
	settled(t, 1500*time.Millisecond)
	labtest.Fault(t)(w.StateLoss(ends[0], ends[1]))
	k.client.Write([]byte("third"))
	w.pass(t)
	if n := len(w.of(k.client)); n != 0 {
		t.Errorf("suspected at once: %+v", w.of(k.client)[0].Request)
	}
	labtest.Eventually(t, 10*time.Second, func() bool { w.pass(t); return len(w.of(k.client)) > 0 }, "suspected")
}

// settled lets a time pass in which nothing is done.
func settled(t *testing.T, d time.Duration) {
	t.Helper()
	began := time.Now()
	labtest.Eventually(t, d+10*time.Second, func() bool { return time.Since(began) > d }, "time")
}

// TestSilentKeepalives: a peer that answers keepalives is not suspected however long
// it takes its time; once it is gone it is, when one stays unanswered.
func TestSilentKeepalives(t *testing.T) {
	w := watch(t, `version: 1
defaults:
  user_timeout: 60s
  keepalive: {idle: 1s, interval: 1s, count: 5}
  silence: 8s
peers:
  - {name: server, cidrs: [10.91.2.0/24]}
`)
	k := w.talk(t)
	say(t, k.client, k.server, "request")
	began := time.Now()
	labtest.Eventually(t, 20*time.Second, func() bool { w.pass(t); return time.Since(began) > 9*time.Second }, "time")
	if n := len(w.of(k.client)); n != 0 {
		t.Errorf("suspected %d times although it answers", n)
	}
	labtest.Fault(t)(w.StateLoss(labtest.Addr(k.client.LocalAddr()), labtest.Addr(k.client.RemoteAddr())))
	labtest.Eventually(t, 20*time.Second, func() bool { w.pass(t); return len(w.of(k.client)) > 0 }, "suspected")
	if s := w.of(k.client)[0]; s.Heard < 2*time.Second || s.Heard >= 8*time.Second {
		t.Errorf("got %+v, want it unheard for 2.1 s", s)
	}
}

// TestSilentUpload: data that gets acknowledged is no silence.
func TestSilentUpload(t *testing.T) {
	w := watch(t, silent)
	k := w.talk(t)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		chunk := make([]byte, 1<<20)
		for {
			select {
			case <-stop:
				return
			default:
				if _, err := k.client.Write(chunk); err != nil {
					return
				}
			}
		}
	}()
	go io.Copy(io.Discard, throttled{k.server})
	began := time.Now()
	labtest.Eventually(t, 20*time.Second, func() bool { w.pass(t); return time.Since(began) > 4*time.Second }, "time")
	if n := len(w.of(k.client)); n != 0 {
		t.Errorf("suspected %d times", n)
	}
	close(stop)
	k.client.Close()
	<-done
}

// throttled reads a little at a time.
type throttled struct{ io.Reader }

func (r throttled) Read(b []byte) (int, error) {
	time.Sleep(time.Millisecond)
	return r.Reader.Read(b[:min(len(b), 32<<10)])
}

// TestSilentPolicy: what counts is the policy in force, and only its silence.
func TestSilentPolicy(t *testing.T) {
	w := watch(t, silent)
	other := loadertest.Load(t)
	if _, err := other.Silent(func(loader.Suspect) {}); !errors.Is(err, loader.ErrNoPolicy) {
		t.Errorf("without a policy: %v", err)
	}
	k := w.talk(t)
	say(t, k.client, k.server, "request")
	off := silent + "  - {name: another, cidrs: [10.91.9.0/24], silence: off}\n"
	w.SetPolicy(t, strings.ReplaceAll(off, "silence: 1s", "silence: off"))
	began := time.Now()
	labtest.Eventually(t, 20*time.Second, func() bool { w.pass(t); return time.Since(began) > 1500*time.Millisecond }, "time")
	if n := len(w.of(k.client)); n != 0 {
		t.Errorf("suspected %d times", n)
	}
	w.SetPolicy(t, off)
	labtest.Eventually(t, 10*time.Second, func() bool { w.pass(t); return len(w.of(k.client)) == 1 }, "suspected")
}

// TestSilentUnsupported: where the kernel has no such iterator that is told, of the
// feature and by a pass.
func TestSilentUnsupported(t *testing.T) {
	p := loadertest.Load(t)
	p.WithoutRecordsIterator()
	_, err := p.Silent(func(loader.Suspect) { t.Error("a suspect") })
	for _, err := range []error{err, p.Lacks(kernel.Silence)} {
		if !errors.Is(err, loader.ErrUnsupported) || !strings.Contains(err.Error(), "silence: ") {
			t.Errorf("got %v", err)
		}
	}
}

// TestSilentMany: a pass tells of as many as go into one read, and the next of the
// rest.
func TestSilentMany(t *testing.T) {
	w := watch(t, silent)
	const n, fit = 500, 32 << 10 / 72
	ln := labtest.Listen(t, w.Server, netip.AddrPortFrom(w.ServerAddr4, 0))
	for range n {
		c := labtest.Dial(t, w.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
		labtest.Accept(t, ln)
		if _, err := c.Write([]byte("request")); err != nil {
			t.Fatal(err)
		}
	}
	// All are due at once, and no pass came before.
	settled(t, 1200*time.Millisecond)
	passes, most := 0, 0
	labtest.Eventually(t, 60*time.Second, func() bool {
		pass := w.pass(t)
		if pass.Suspects > 0 {
			passes++
		}
		most = max(most, pass.Suspects)
		if pass.Suspects == 0 && pass.PutOff > 0 {
			t.Errorf("put %d off, and told of none", pass.PutOff)
		}
		return len(w.found) == n
	}, "all suspected")
	if most > fit || passes < 2 {
		t.Errorf("%d in one pass, %d passes", most, passes)
	}
}
