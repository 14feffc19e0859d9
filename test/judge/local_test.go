// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// locals are connections whose trouble is this host's.
func locals() []scenario {
	return []scenario{
		{name: "dropped by this host", want: "unknown (probe_blocked): kept", entry: anyOf, lives: true, play: droppedHere},
		{name: "a local proxy answers", want: "unknown (local_leg): kept", entry: quick, only: outboundIPv4, lives: true, play: proxyAnswers},
		{name: "a local proxy passes on", want: "alive: kept", entry: quick, only: outboundIPv4, lives: true, play: proxyPasses},
	}
}

// droppedHere: a firewall of this host keeps what the connection sends.
func droppedHere(p *play) {
	p.works()
	p.rest(0, 1200*time.Millisecond)
	fault, err := p.DropLocally(p.there())
	labtest.Fault(p)(fault, err)
	if p.IntN(2) == 0 {
		p.call()
	}
	p.timeout()
	p.report()
	p.heal(fault)
	p.kept("unknown (probe_blocked)")
}

// behind opens the connection by way of the proxy, whose own connection to the peer is
// returned. What the proxy has taken is p.far.
func (p *play) behind() (near, far *net.TCPConn) {
	p.Helper()
	bed := &p.proxied
	p.desk = bed.desk
	d := labtest.Dialer{NS: bed.Client, Mapped: p.family == mapped, Timeout: late}
	bed.taking.Lock()
	p.near = newEnd(d.Dial(p, netip.AddrPortFrom(bed.ServerAddr4, proxied)))
	p.far = newEnd(labtest.AcceptWithin(p, bed.ln, late))
	bed.taking.Unlock()
	ln := labtest.Listen(p, bed.Server, netip.AddrPortFrom(bed.ServerAddr4, 0))
	near = labtest.Dial(p, bed.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
	return near, labtest.AcceptWithin(p, ln, late)
}

// proxyAnswers: the peer is out of reach, and the proxy's kernel acknowledges.
func proxyAnswers(p *play) {
	near, _ := p.behind()
	p.near.listen(64<<10, 0)
	p.far.listen(64<<10, 0)
	p.exchange()
	labtest.Fault(p)(p.proxied.Drop(lab.Match{
		Src: lab.Only(p.proxied.ClientAddr4), SrcPort: labtest.Addr(near.LocalAddr()).Port(), Both: true,
	}))
	p.delivered()
	if _, err := near.Write(text(0, 100)); err != nil {
		p.Fatal(err)
	}
	p.timeout()
	p.report()
	p.kept("unknown (local_leg)")
}

// proxyPasses: the peer's answer comes through the proxy.
func proxyPasses(p *play) {
	near, far := p.behind()
	taken := p.far
	p.near.listen(64<<10, 0)
	go func() { _, _ = io.Copy(taken, near) }()
	go func() { _, _ = io.Copy(near, taken) }()
	served := newEnd(far)
	served.listen(64<<10, 0)
	p.far = served // the peer itself
	p.exchange()
	p.delivered()
	p.timeout()
	p.replies()
	p.near.heard(p, p.far.said)
	p.report()
	p.kept(p.either(alive, "unknown (local_leg)")...)
}
