// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"errors"
	"io"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// halves are connections of which one end has said all.
func halves() []scenario {
	return []scenario{
		{name: "half-closed, answer to come", want: "alive_slow: kept", entry: anyOf, lives: true, play: halfClosed},
		{name: "half-closed, path dead", want: "dead_path: closed", entry: anyOf, play: halfClosedDead},
		{name: "half-closed by the peer", want: "closed_by_peer: kept", entry: anyOf, play: halfClosedThere},
	}
}

// finish calls and says that nothing more will come.
func (p *play) finish() {
	p.Helper()
	p.delivered()
	if err := p.near.CloseWrite(); err != nil {
		p.Fatal(err)
	}
	labtest.Eventually(p, late, func() bool { return labtest.State(p, p.near) == conn.FinWait2 }, "the FIN to be acknowledged")
}

func halfClosed(p *play) {
	p.works()
	p.finish()
	p.timeout()
	p.report()
	p.want("none", aliveSlow)
	p.says(p.far, 700)
	p.near.heard(p, p.far.said)
	p.out.arrived = true
}

func halfClosedDead(p *play) {
	p.works()
	p.finish()
	p.drop(p.anyWay())
	p.timeout()
	p.report()
	p.closed(0, deadPath)
}

// halfClosedThere: a FIN has come, whose one byte of the counters is no answer. What
// this end has to say still arrives.
func halfClosedThere(p *play) {
	p.works()
	p.call()
	p.rest(0, 300*time.Millisecond)
	if err := p.far.CloseWrite(); err != nil {
		p.Fatal(err)
	}
	select {
	case <-p.near.done:
	case <-time.After(late):
		p.fail("no FIN has come")
	}
	p.timeout()
	p.report()
	p.want("none", "closed_by_peer")
	if err, _ := p.near.ended(); !errors.Is(err, io.EOF) {
		p.fail("the application got %v, want the end of the text", err)
	}
	p.says(p.near, 700)
	p.far.heard(p, p.near.said)
	p.out.arrived = true
}
