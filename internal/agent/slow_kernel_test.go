// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// withApp is patient with an application probe of the server.
const withApp = `version: 1
defaults:
  user_timeout: 60s
  keepalive: {idle: 30s, interval: 5s, count: 5}
  probe: {window: 1500ms, attempts: 3}
peers:
  - name: server
    cidrs: [10.91.2.0/24]
    app_probe: {send: {port: 7199, data: "PING"}, timeout: 1s, on_hung: close}
`

// call sends a request that stays unanswered, and returns what to report of it.
func (b *bed) call(t *testing.T) (client, server *net.TCPConn, r agent.Report) {
	t.Helper()
	client, server = labtest.Pair(t, b.Lab, 0)
	exchange(t, client, server)
	labtest.Eventually(t, late, func() bool { return !fresh(labtest.TCPInfo(t, client)) }, "the payload to be older than the call")
	r = report(b.Client, client, 0)
	client.Write([]byte("request"))
	io.ReadFull(server, make([]byte, 7))
	return client, server, r
}

// judgeApp is judge until the application was asked. Where the kernel's keepalives are
// late its silence proves nothing, and it is asked again 10 s later.
func (b *bed) judgeApp(t *testing.T, call agent.Report) (r agent.Result) {
	t.Helper()
	labtest.Eventually(t, time.Minute, func() bool {
		r = b.judge(t, call)
		return r.Evidence.App != verdict.AppNoConnection
	}, "the outcome of an application probe")
	return r
}

// fresh reports whether payload came within the last ticks.
func fresh(info *unix.TCPInfo) bool { return info.Last_data_recv < 30 }

// TestHung: a process that stands still while its kernel answers is closed only
// where an application probe connects and gets not one byte.
func TestHung(t *testing.T) {
	b := newBed(t, withApp)
	client, server, call := b.call(t)
	// Nobody listens: that proves nothing.
	wantVerdict(t, b.judge(t, call), verdict.AliveSlow, "", agent.ActionNone)
	wantWorks(t, server, client)
}

func TestHungSilent(t *testing.T) {
	b := newBed(t, withApp)
	client, _, call := b.call(t)
	ln := labtest.Listen(t, b.Server, netip.AddrPortFrom(b.ServerAddr4, 7199))
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			io.Copy(io.Discard, c) // takes everything, says nothing
			c.Close()
		}
	}()
	r := b.judgeApp(t, call)
	wantVerdict(t, r, verdict.AliveHung, "", agent.ActionClosed)
	if r.Evidence.App != verdict.AppSilent || !r.Evidence.ProbeAnswered {
		t.Errorf("evidence %+v", r.Evidence)
	}
	wantAborted(t, client)
}

func TestHungAnswers(t *testing.T) {
	b := newBed(t, withApp)
	client, server, call := b.call(t)
	ln := labtest.Listen(t, b.Server, netip.AddrPortFrom(b.ServerAddr4, 7199))
	go func() {
		if c, err := ln.Accept(); err == nil {
			c.Write([]byte("-ERR go away"))
			c.Close()
		}
	}()
	r := b.judge(t, call)
	wantVerdict(t, r, verdict.AliveSlow, "", agent.ActionNone)
	if r.Evidence.App != verdict.AppAnswered {
		t.Errorf("evidence %+v", r.Evidence)
	}
	wantWorks(t, server, client)
}

// TestAcceptQueueFull: no new connection can be made to the peer, the old one
// works and stays.
func TestAcceptQueueFull(t *testing.T) {
	b := newBed(t, withApp)
	client, server, call := b.call(t)
	full := labtest.Listen(t, b.Server, netip.AddrPortFrom(b.ServerAddr4, 7199))
	labtest.Control(t, full, func(fd int) error { return unix.Listen(fd, 0) })
	labtest.Dial(t, b.Client, netip.AddrPort{}, labtest.Addr(full.Addr())) // never accepted
	r := b.judge(t, call)
	wantVerdict(t, r, verdict.AliveSlow, "", agent.ActionNone)
	if r.Evidence.App != verdict.AppNoConnection {
		t.Errorf("evidence %+v", r.Evidence)
	}
	wantWorks(t, server, client)
}

// TestHungIdle: no call was made on this connection, so that nobody's silence
// costs it.
func TestHungIdle(t *testing.T) {
	b := newBed(t, withApp)
	idle, idlePeer := labtest.Pair(t, b.Lab, 0)
	exchange(t, idle, idlePeer)
	ln := labtest.Listen(t, b.Server, netip.AddrPortFrom(b.ServerAddr4, 7199))
	defer ln.Close()
	b.silent(t, b.Client, idle, 1200*time.Millisecond)
	wantVerdict(t, b.judge(t, report(b.Client, idle, 300*time.Millisecond)), verdict.AliveSlow, "", agent.ActionNone)
	wantWorks(t, idle, idlePeer)
}

// TestObserved: what would have been closed is told, left alone, and counted
// when it turns out to live.
func TestObserved(t *testing.T) {
	b := newBed(t, patient[:len(patient)-1]+"\n    action: observe\n")
	client, server := labtest.Pair(t, b.Lab, 0)
	exchange(t, client, server)
	_ = client
	fault := labtest.Fault(t)(b.StateLoss(labtest.Addr(server.LocalAddr()), labtest.Addr(server.RemoteAddr())))
	b.silent(t, b.Server, server, 1200*time.Millisecond)
	r := b.judge(t, report(b.Server, server, time.Second))
	wantVerdict(t, r, verdict.DeadPath, "", agent.ActionObserved)
	labtest.Heal(t, fault)
	wantWorks(t, client, server)
	labtest.Eventually(t, late, func() bool { return b.agent.Stats().WouldHaveClosed["client"] == 1 }, "the live one to be counted")
}
