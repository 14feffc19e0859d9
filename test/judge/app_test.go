// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"io"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// applications are connections whose policy has the application asked.
func applications() []scenario {
	return []scenario{
		{name: "stopped process, asked", want: "alive_hung: closed", entry: asked, only: outbound, play: hung},
		{name: "slow answer, asked", want: "alive_slow: kept", entry: asked, only: outbound, lives: true, play: slowAsked},
		{name: "slow, nobody to ask", want: "alive_slow: kept", entry: asked, only: outbound, lives: true, play: slowUnasked},
	}
}

func hung(p *play) {
	signal := p.process()
	signal(unix.SIGSTOP)
	p.call()
	p.timeout()
	p.report()
	if testing.Short() { // where the kernel's keepalives are late, silence proves nothing; it is asked again after 10 s
		for began := conn.Now(); p.out.given == aliveSlow && conn.Now()-began < late; {
			p.report()
		}
	}
	p.closed(asking, "alive_hung")
}

// slowAsked: the application answers others.
func slowAsked(p *play) {
	p.works()
	go func() {
		for {
			c, err := p.ln.AcceptTCP()
			if err != nil {
				return
			}
			go func(c net.Conn) {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}(c)
		}
	}()
	p.delivered()
	p.timeout()
	p.report()
	p.kept(aliveSlow)
}

// slowUnasked: nobody takes a new connection, which proves nothing.
func slowUnasked(p *play) {
	p.works()
	if err := p.ln.Close(); err != nil {
		p.Fatal(err)
	}
	p.delivered()
	p.timeout()
	p.report()
	p.kept(aliveSlow)
}
