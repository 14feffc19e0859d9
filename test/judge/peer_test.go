// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// process starts a peer beside the play that sends back what it gets, and opens the
// connection with it: near alone is an end of the test's.
func (p *play) process() (signal func(unix.Signal)) {
	p.Helper()
	var addr netip.AddrPort
	var args []string
	if p.inbound {
		p.ln = p.listening()
		addr = netip.AddrPortFrom(p.pick(p.ClientAddr4, p.ClientAddr6), labtest.Addr(p.ln.Addr()).Port())
		args = []string{"dial", addr.String()}
	} else {
		addr = netip.AddrPortFrom(p.pick(p.server.Addr4, p.server.Addr6), p.port(p.entry))
		args = []string{"listen", addr.String()}
	}
	signal = startPeer(p, p.server.NS, args...)
	if p.inbound {
		p.near = newEnd(labtest.AcceptWithin(p, p.ln, late))
	} else {
		p.near = newEnd(labtest.Dialer{NS: p.Client, Mapped: p.family == mapped, Timeout: late}.Dial(p, addr))
	}
	p.near.listen(64<<10, 0)
	p.says(p.near, 100)
	p.near.heard(p, p.near.said)
	return signal
}

// startPeer starts the process and returns when it has its connection, or waits for it.
func startPeer(t testing.TB, ns *netns.NS, args ...string) (signal func(unix.Signal)) {
	t.Helper()
	cmd := self(t, peerName, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	labtest.Start(t, ns, cmd)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Fatalf("a peer does not get ready: %v", err)
	}
	return func(s unix.Signal) {
		t.Helper()
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
}

// peer is a process that sends back whatever it gets, on every connection that it
// accepts, or opens: "listen ADDR" or "dial ADDR". It says when it has done so.
func peer(args []string) int {
	switch args[0] {
	case "listen":
		var cfg net.ListenConfig
		cfg.SetMultipathTCP(false)
		ln, err := cfg.Listen(context.Background(), "tcp", args[1])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println("ready")
		for {
			c, err := ln.Accept()
			if err != nil {
				return 1
			}
			go func() { _, _ = io.Copy(c, c) }()
		}
	case "dial":
		c, err := net.Dial("tcp", args[1])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println("ready")
		_, _ = io.Copy(c, c)
	}
	return 0
}
