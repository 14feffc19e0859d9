// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/api"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/netns/registry"
)

// young makes a namespace right after a look at the node.
func (a *runAgent) young(t *testing.T, known *registry.Registry) *lab.Lab {
	t.Helper()
	last := known.Status().Ended
	labtest.Eventually(t, 30*time.Second, func() bool { return known.Status().Ended.After(last) }, "a look at the node")
	l := labtest.New(t, lab.Options{ServerAddrs: []netip.Addr{service4.Addr()}})
	// The agent is this process, whose own namespaces do not count: another
	// one lives there.
	resident := a.command(t, netip.AddrPortFrom(l.ClientAddr4, 9).String())
	resident.Args[0] = "answerer" // see TestMain
	labtest.Start(t, l.Client, resident)
	t.Cleanup(func() {
		_ = resident.Process.Kill()
		_ = resident.Wait()
	})
	return l
}

// What happens in a namespace that is younger than the last look at the node makes it
// known: by a report, and by an operator's question.
func TestYoungNamespace(t *testing.T) {
	labtest.Everywhere(t)
	a := newRunAgent(t)
	a.write(t, containerPolicy(time.Minute))
	o := &runOptions{policy: a.path("policy.yaml"), listen: "127.0.0.1:0", cgroup: a.cgroup.Path, runDir: a.path("run"), noPin: true}
	var s *service
	if err := a.ns.Do(func() (err error) { // its metrics listen there
		s, err = start(o, slog.New(slog.NewTextHandler(io.Discard, nil)))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	}()
	knows := func(l *lab.Lab) bool {
		ns, ok := s.registry.ByInode(l.Client.Inode())
		if ok {
			_ = ns.Close()
		}
		return ok
	}
	t.Run("report", func(t *testing.T) {
		var l *lab.Lab
		var client *net.TCPConn
		labtest.Eventually(t, time.Minute, func() bool {
			l = a.young(t, s.registry)
			before := s.registry.Status().Ended
			// Outside the cgroup: nothing of ours has seen it open.
			client, _ = labtest.PairTo(t, labtest.Dialer{NS: l.Client}, l.Server, service4)
			a.Client = l.Client
			r := a.report(t, client, "0s")
			if r.Verdict == "unmanaged" && r.Reason == "older" {
				return true
			}
			if !s.registry.Status().Ended.After(before) {
				t.Fatalf("got %+v", r)
			}
			return false // a look at the node was first
		}, "a report that comes before a look at the node")
		// Much sooner than the next look is due, which rests for the longer the
		// longer a look takes.
		within := max(4*time.Second, 25*s.registry.Status().Took)
		labtest.Eventually(t, within, func() bool { return knows(l) }, "the namespace of the report")
		if expected(t, []kernel.Feature{kernel.Adopt})[kernel.Adopt.String()] {
			labtest.Eventually(t, 30*time.Second, func() bool { return labtest.Options(t, client).UserTimeout == time.Minute }, "the adoption")
			wantResult(t, a.report(t, client, "0s"), "alive_slow", "none")
		}
	})
	t.Run("explain", func(t *testing.T) { a.testYoungExplained(t, s.registry) })
}

// testYoungExplained: a question of an operator makes one known.
func (a *runAgent) testYoungExplained(t *testing.T, known *registry.Registry) {
	l := a.young(t, known)
	client, _ := labtest.PairTo(t, labtest.Dialer{NS: l.Client}, l.Server, service4)
	id := conn.ID{
		Netns: l.Client.Inode(), Local: labtest.Addr(client.LocalAddr()), Remote: labtest.Addr(client.RemoteAddr()),
	}
	x, err := api.Dial(a.path("run")).Explain(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if x.Socket.Netns != l.Client.Inode() {
		t.Errorf("got %+v", x.Socket)
	}
}
