// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

const deadPath = "dead_path"

// deadOnes are connections whose path, or whose peer's end, is gone.
func deadOnes() []scenario {
	return []scenario{
		{name: "dead path, call in flight", want: "dead_path: closed", entry: anyOf, play: deadInFlight},
		{name: "dead path, no call", want: "dead_path: closed", entry: anyOf, play: deadIdle},
		{name: "dead after the ACK", want: "dead_path: closed", entry: anyOf, play: deadAfterACK},
		{name: "dead amid the answer", want: "dead_path: closed", entry: anyOf, play: deadAmid},
		{name: "dead, and reported twice", want: "dead_path: closed", entry: anyOf, play: deadTwice},
		{name: "state lost on the path", want: "dead_path: closed", entry: anyOf, play: stateLost},
		{name: "dead beside a sibling", want: "dead_path: closed", entry: anyOf, play: deadSibling},
		{name: "peer without state", want: "closed_by_peer: reset", entry: anyOf, play: withoutState},
		{name: "reset by a middlebox", want: "closed_by_peer: reset", entry: anyOf, play: middlebox},
	}
}

func deadInFlight(p *play) {
	p.works()
	p.rest(0, 1200*time.Millisecond)
	p.drop(p.anyWay())
	p.rest(0, 300*time.Millisecond)
	p.call()
	p.timeout()
	p.report()
	p.closed(0, deadPath)
	p.delivery("unacknowledged")
}

// deadIdle: somebody wonders about a connection on which nothing was asked.
func deadIdle(p *play) {
	p.works()
	p.drop(p.anyWay())
	p.rest(0, 2*time.Second)
	p.report()
	p.closed(0, deadPath)
}

// deadAfterACK: the request was acknowledged, and then the path died. Nothing is in
// flight any more.
func deadAfterACK(p *play) {
	p.works()
	p.delivered()
	p.rest(0, 200*time.Millisecond)
	p.drop(p.anyWay())
	p.timeout()
	p.report()
	p.closed(0, deadPath)
	p.delivery("acknowledged")
}

// deadAmid: a part of the answer came, and the rest never will. Within a second of the
// last packet a connection counts as alive.
func deadAmid(p *play) {
	p.works()
	p.delivered()
	p.rest(20*time.Millisecond, 200*time.Millisecond)
	p.says(p.far, 500)
	p.near.heard(p, p.far.said)
	labtest.Eventually(p, late, func() bool { return labtest.TCPInfo(p, p.far).Unacked == 0 }, "the answer to be acknowledged")
	p.drop(p.anyWay())
	p.rest(1100*time.Millisecond, 2*time.Second)
	p.report()
	p.closed(0, deadPath)
}

// deadTwice: the second report joins the judgement, and is told the same.
func deadTwice(p *play) {
	p.works()
	p.drop(p.anyWay())
	p.call()
	p.timeout()
	p.ask()
	asked, first := p.asked, p.answer
	p.rest(0, time.Second)
	p.report()
	p.out.dead = true
	p.want("closed", deadPath)
	p.asked, p.answer = asked, first
	p.told()
	p.closed(0, deadPath)
}

// stateLost: a firewall has forgotten this connection, and new ones to the same service
// work.
func stateLost(p *play) {
	p.works()
	fault, err := p.StateLoss(labtest.Addr(p.near.LocalAddr()), labtest.Addr(p.near.RemoteAddr()))
	labtest.Fault(p)(fault, err)
	p.call()
	p.timeout()
	fresh, freshPeer := p.pair()
	p.report()
	p.closed(0, deadPath)
	fresh.listen(4096, 0)
	freshPeer.listen(4096, 0)
	p.near, p.far = fresh, freshPeer
	p.exchange()
}

// deadSibling: one of two connections to the same service. The other one is asked
// because of it, and stays.
func deadSibling(p *play) {
	p.works()
	sibling, siblingPeer := p.pair()
	sibling.listen(4096, 0)
	siblingPeer.listen(4096, 0)
	p.drop(p.anyWay())
	p.call()
	p.timeout()
	p.report()
	p.closed(0, deadPath)
	p.near, p.far = sibling, siblingPeer
	p.exchange()
	if err, _ := sibling.ended(); err != nil {
		p.out.strike = true
		p.fail("the sibling got %v", err)
	}
}

// withoutState: the peer was started anew. What it knew of the connection is gone, and
// the probe tells.
func withoutState(p *play) {
	p.works()
	lost := p.drop(p.both()) // the reset with which it goes
	if err := p.far.Close(); err != nil {
		p.Fatal(err)
	}
	inFlight := p.IntN(2) == 0
	if inFlight {
		p.call()
	}
	p.timeout()
	if !inFlight {
		p.heal(lost)
		p.report()
		p.reset("closed_by_peer")
		return
	}
	p.ask() // what is in flight would be answered by a reset as soon as it can
	p.heal(lost)
	p.told()
	p.reset("closed_by_peer", "gone (not_found)")
}

// middlebox: a device on the way answers in the peer's name that it knows of no such
// connection.
func middlebox(p *play) {
	p.works()
	p.rest(0, 1500*time.Millisecond)
	labtest.Fault(p)(p.RejectReset(p.there()))
	p.report()
	p.reset("closed_by_peer", "gone (not_found)") // a survey, or a keepalive, may have asked before
	if s := labtest.State(p, p.far); s != conn.Established {
		p.fail("the far end is %s", s)
	}
}
