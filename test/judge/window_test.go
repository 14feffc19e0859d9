// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"time"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/policy"
)

// windows are connections whose peer does not read.
func windows() []scenario {
	return []scenario{
		{name: "zero window", want: "alive_slow: kept", entry: guarded, lives: true, play: zeroWindow},
		{name: "zero window, then dead", want: "dead_path: closed", entry: guarded, play: zeroWindowDies},
		{name: "zero window, then dead, long bound", want: "dead_path: closed", entry: usual, play: zeroWindowDies},
	}
}

// stuffed is more than two ends hold between them.
const stuffed = 8 << 20

// stuff sends until the peer, which does not read, takes no more.
func (p *play) stuff() {
	p.open()
	p.near.listen(64<<10, 0)
	p.near.sends(stuffed)
	labtest.Eventually(p, late, func() bool {
		i := labtest.TCPInfo(p, p.near)
		return i.Unacked == 0 && i.Notsent_bytes > 0 && i.Backoff > 0
	}, "the window to be shut")
}

// zeroWindow: the peer reads nothing for longer than twice the user timeout, and then
// all.
func zeroWindow(p *play) {
	p.stuff()
	shut := 9 * time.Second
	if !p.has[kernel.Guard] { // which would end it
		shut = time.Second
	}
	began := p.between(200*time.Millisecond, shut)
	time.Sleep(began)
	p.report()
	p.want("none", aliveSlow)
	time.Sleep(shut - began)
	p.far.listen(1<<20, 0)
	p.kept(aliveSlow)
}

// owing is how long the last attempt may wait for the peer's limit on answers, where the
// kernel has probed the window shortly before, and once more meanwhile.
const owing = 2 * (policy.MinSpacing + 10*time.Millisecond)

// confirming is how far off a window probe may be that a judgement waits for, and how late.
const (
	confirming = 10 * time.Second
	confirmed  = confirming + 3*time.Second
)

// probed returns how far off the kernel's next window probe is, at most.
func (p *play) probed() time.Duration {
	i := labtest.TCPInfo(p, p.near)
	set := max(time.Duration(i.Rto)*time.Microsecond, 200*time.Millisecond) << i.Backoff
	return set - time.Duration(i.Last_ack_recv)*time.Millisecond
}

// zeroWindowDies: with a short bound the user timeout counts from the last packet, and the
// window is a little shorter. A window probe of the connection's own comes within the window
// where the guard paces them, and else is waited for.
func zeroWindowDies(p *play) {
	p.stuff()
	least, most := time.Duration(0), 4*time.Second
	switch {
	case p.entry == usual: // until the kernel's probes are far apart
		least, most = 6*time.Second, 11*time.Second
	case !p.has[kernel.Guard]:
		most = 500 * time.Millisecond
	}
	p.rest(least, most)
	p.drop(p.anyWay())
	p.rest(100*time.Millisecond, 600*time.Millisecond)
	p.report()
	if p.out.given == "gone (bound)" || p.out.given == "gone (ended)" {
		p.bounded() // by a hair's breadth
		return
	}
	if p.has[kernel.RTOCap] {
		p.closed(owing, deadPath)
		return
	}
	// The kernel's own probes have become rare.
	if next := p.probed(); p.out.given != deadPath && next > confirming-time.Second {
		p.out.dead = true
		p.want("none", "unknown (unconfirmed)")
		return
	}
	p.closed(owing+confirmed, deadPath)
}
