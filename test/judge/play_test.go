// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/report"
)

// play is one connection that is judged: near is the end whose application reports, far
// is its peer's.
type play struct {
	testing.TB
	*bed
	*rand.Rand
	variant
	entry int
	desk  *desk

	near, far *end
	cookie    uint64 // of what is judged
	faults    []*lab.Fault
	ln        *net.TCPListener // of whoever accepted
	server    lab.Host

	quiet  time.Duration // since when the peer has said nothing, at the latest
	wrote  time.Duration // when the call was
	wait   time.Duration // from then until the answer, at least
	asked  time.Duration // when its report was sent, at the earliest
	answer <-chan answer
	out    outcome
}

// fail ends the play.
func (p *play) fail(format string, args ...any) {
	p.Helper()
	p.out.why = fmt.Sprintf(format, args...)
	p.Fatal(p.out.why)
}

// between is a random time.
func (p *play) between(from, to time.Duration) time.Duration {
	return from + time.Duration(p.Int64N(int64(to-from)))
}

// rest lets a random time pass.
func (p *play) rest(from, to time.Duration) { time.Sleep(p.between(from, to)) }

// until lets time pass to a moment.
func (p *play) until(moment time.Duration) { time.Sleep(moment - conn.Now()) }

// listening listens where connections of the play are accepted.
func (p *play) listening() *net.TCPListener {
	p.Helper()
	ns, addr := p.server.NS, p.pick(p.server.Addr4, p.server.Addr6)
	if p.inbound {
		ns, addr = p.Client, p.pick(p.ClientAddr4, p.ClientAddr6)
		if p.family == mapped {
			addr = netip.IPv6Unspecified()
		}
	}
	return labtest.Listen(p, ns, netip.AddrPortFrom(addr, p.port(p.entry)))
}

// dial opens a connection of the play.
func (p *play) dial() *net.TCPConn {
	p.Helper()
	d := labtest.Dialer{NS: p.Client, Mapped: p.family == mapped && !p.inbound, Timeout: late}
	to := labtest.Addr(p.ln.Addr())
	if p.inbound {
		d.NS = p.server.NS
		to = netip.AddrPortFrom(p.pick(p.ClientAddr4, p.ClientAddr6), to.Port())
	}
	return d.Dial(p, to)
}

// pair opens a connection and returns its near end first.
func (p *play) pair() (near, far *end) {
	p.Helper()
	dialled := p.dial()
	accepted := labtest.AcceptWithin(p, p.ln, late)
	for _, c := range []*net.TCPConn{dialled, accepted} { // by a reset, so that its port is free at once
		if err := c.SetLinger(0); err != nil {
			p.Fatal(err)
		}
	}
	if p.inbound {
		return newEnd(accepted), newEnd(dialled)
	}
	return newEnd(dialled), newEnd(accepted)
}

// open opens the connection of the play. Nobody listens yet.
func (p *play) open() {
	p.Helper()
	p.ln = p.listening()
	p.near, p.far = p.pair()
}

// works opens the connection, and both ends hear each other.
func (p *play) works() {
	p.Helper()
	p.open()
	p.near.listen(64<<10, 0)
	p.far.listen(64<<10, 0)
	p.exchange()
}

// exchange has each end say something, and the other hear it.
func (p *play) exchange() {
	p.Helper()
	p.says(p.near, 100+p.IntN(2000))
	p.far.heard(p, p.near.said)
	p.says(p.far, 100+p.IntN(2000))
	p.near.heard(p, p.far.said)
	p.quiet = conn.Now()
}

func (p *play) says(e *end, n int) {
	p.Helper()
	if err := e.say(n); err != nil {
		p.fail("%s says something: %v", e, err)
	}
}

// call sends a request.
func (p *play) call() {
	p.Helper()
	p.wrote = conn.Now() // as applications count
	p.says(p.near, 200+p.IntN(1000))
}

// delivered calls, and waits until the request is acknowledged.
func (p *play) delivered() {
	p.Helper()
	p.call()
	p.far.heard(p, p.near.said)
	labtest.Eventually(p, late, func() bool { return labtest.TCPInfo(p, p.near).Unacked == 0 }, "the request to be acknowledged")
}

// replies answers the call.
func (p *play) replies() {
	p.Helper()
	p.wait = conn.Now() - p.wrote
	p.says(p.far, 500)
}

// either are the verdicts on a connection whose call was answered before the report. A
// report states the age of the call: where it was longer under way than the answer took to
// come, that seems older than the call.
func (p *play) either(answered, otherwise string) []string {
	if took := p.out.answered - p.asked; took > p.wait-20*time.Millisecond {
		return []string{answered, otherwise}
	}
	return []string{answered}
}

// timeout waits until the application has had enough of waiting.
func (p *play) timeout() { p.rest(100*time.Millisecond, 1300*time.Millisecond) }

// ask reports the connection.
func (p *play) ask() {
	p.Helper()
	if p.wrote == 0 {
		p.wrote = p.quiet + p.between(0, conn.Now()-p.quiet) // no call was made
	}
	r, err := report.NewRequest(p.near, conn.Now()-p.wrote)
	if err != nil {
		p.Fatal(err)
	}
	p.cookie = labtest.Cookie(p, p.near)
	p.asked = conn.Now()
	if p.answer, err = p.desk.report(r); err != nil {
		p.Fatal(err)
	}
}

// told waits for the verdict.
func (p *play) told() {
	p.Helper()
	select {
	case a := <-p.answer:
		if a.Err != "" || len(a.Response.Results) != 1 {
			p.fail("the report: %s, %d results", a.Err, len(a.Response.Results))
		}
		p.out.took(a)
	case <-time.After(2 * late):
		p.fail("no answer to the report")
	}
}

// report asks and is told.
func (p *play) report() {
	p.Helper()
	p.ask()
	p.told()
}

// want demands one of these verdicts, and that what was said to have been done is that.
func (p *play) want(action string, words ...string) {
	p.Helper()
	if !slices.Contains(words, p.out.given) {
		for _, e := range p.records() {
			record, _ := json.Marshal(e) // words and numbers: cannot fail
			p.Logf("the record: %s", record)
		}
		p.fail("verdict %s, want %s", p.out.given, words)
	}
	if p.out.action != action {
		p.fail("verdict %s, action %s, want %s", p.out.given, p.out.action, action)
	}
}

// kept demands the verdict, and that the connection lives: all that was said
// arrives, and what each end says from now on.
func (p *play) kept(words ...string) {
	p.Helper()
	p.out.lives = true
	p.want("none", words...)
	p.lives()
}

// lives demands that what either end says, and has said, is heard by the other.
func (p *play) lives() {
	p.Helper()
	p.far.heard(p, p.near.said)
	p.exchange()
	p.out.arrived = true
}

// closed demands the verdict, and that the agent closes the connection: its
// application gets ECONNABORTED. Its judgement may have waited for what the scenario is
// about beside its window, this long at most, where the record shows that.
func (p *play) closed(most time.Duration, words ...string) {
	p.Helper()
	p.out.dead = true
	p.want("closed", words...)
	p.aborted(most)
}

// aborted demands that the agent closes the connection.
func (p *play) aborted(most time.Duration) {
	p.Helper()
	p.lost()
	p.ended()
	err, at := p.near.ended()
	if !errors.Is(err, unix.ECONNABORTED) {
		p.fail("verdict %s, and the application got %v, want ECONNABORTED", p.out.given, err)
	}
	p.out.probe = p.probes[p.entry]
	window, _ := p.out.probe.Schedule(0)
	p.out.closed, p.out.asked, p.out.at = true, p.asked, at
	p.out.toClose = at - p.out.began
	p.out.over = at - p.asked - window
	p.besides(p.recordOfClose(), most)
}

// bounded demands that the kernel's own bound has ended the connection.
func (p *play) bounded() {
	p.Helper()
	p.out.dead = true
	p.ended()
	err, at := p.near.ended()
	if !errors.Is(err, unix.ETIMEDOUT) {
		p.fail("verdict %s, and the application got %v, want ETIMEDOUT", p.out.given, err)
	}
	p.out.toClose = at - p.out.began
}

// reset demands that the kernel has ended the connection, by a reset.
func (p *play) reset(words ...string) {
	p.Helper()
	p.out.reset = true
	p.want("none", words...)
	p.ended()
	if err, _ := p.near.ended(); !errors.Is(err, unix.ECONNRESET) {
		p.fail("verdict %s, and the application got %v, want ECONNRESET", p.out.given, err)
	}
}

// ended waits until the application has heard that the connection has ended.
func (p *play) ended() {
	p.Helper()
	select {
	case <-p.near.done:
	case <-time.After(late):
		p.fail("verdict %s, and %s is still open", p.out.given, p.near)
	}
}

// lost demands that the path has lost something, where it was to.
func (p *play) lost() {
	p.Helper()
	var n uint64
	for _, f := range p.faults {
		n += labtest.Packets(p, f)
	}
	if len(p.faults) > 0 && n == 0 {
		p.fail("nothing was lost on the path")
	}
}
