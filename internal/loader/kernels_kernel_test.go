// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/sockdiag"
)

// takeKernels is bothWays with the kernel's own connections managed.
const takeKernels = slowPolicy + `
  kernel_sockets: manage
peers:
  - {name: server, cidrs: [10.91.2.0/24], direction: outbound}
  - {name: client, cidrs: [10.91.1.0/24], direction: inbound}
`

// within is an adoption whose lab is made in a cgroup of the test's own, before or
// after the programs are attached to that.
func within(t *testing.T, before bool) (a *adoption, attach func()) {
	t.Helper()
	a = &adoption{Programs: loadertest.Load(t)}
	a.setPolicy(t, bothWays)
	cgroup := labtest.Cgroup(t)
	labtest.Enter(t, cgroup)
	attach = func() {
		if err := a.Attach(cgroup.Path); err != nil {
			t.Fatal(err)
		}
	}
	if !before {
		attach()
	}
	a.Lab = labtest.New(t, lab.Options{})
	return a, attach
}

// mounted is a connection by which the kernel of the client's namespace talks to a
// file server: from here on it is the kernel's alone, and waits for an answer.
type mounted struct{ local, remote netip.AddrPort }

// mountSMB lets the kernel connect to a server that never answers.
func mountSMB(t *testing.T, a *adoption) mounted {
	t.Helper()
	return mountFrom(t, a, labtest.Listen(t, a.Server, netip.AddrPortFrom(a.ServerAddr4, 0)), func() {})
}

// mountFrom is mountSMB from that server; during is called once the kernel is at it.
func mountFrom(t *testing.T, a *adoption, ln *net.TCPListener, during func()) mounted {
	t.Helper()
	at := labtest.Addr(ln.Addr())
	dir, done := t.TempDir(), make(chan error, 1)
	go func() {
		done <- a.Client.Do(func() error {
			options := fmt.Sprintf("ip=%s,port=%d,user=u,pass=p,vers=3.0", at.Addr(), at.Port())
			return unix.Mount(fmt.Sprintf("//%s/share", at.Addr()), dir, "cifs", 0, options)
		})
	}()
	accepted := make(chan *net.TCPConn, 1)
	go func() {
		if c, err := ln.AcceptTCP(); err == nil {
			accepted <- c
		}
	}()
	t.Cleanup(func() {
		ln.Close()
		select {
		case c := <-accepted:
			c.Close()
		default:
		}
		<-done
	})
	during()
	select {
	case c := <-accepted:
		accepted <- c
		return mounted{labtest.Addr(c.RemoteAddr()), at}
	case err := <-done:
		done <- err
		t.Fatalf("mount: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("the kernel does not connect")
	}
	return mounted{}
}

// snapshot looks at a connection of the namespace.
func snapshot(t *testing.T, p *loader.Programs, ns *netns.NS, local, remote netip.AddrPort) (s conn.Snapshot) {
	t.Helper()
	err := ns.Do(func() (err error) {
		s, err = p.Look(local, remote, 0)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestKernelsOwn: a connection that the kernel holds for itself is left alone, by the
// programs and by a pass, unless the policy names such; and is let go of when the
// policy does so no more. (The kernel gives up a server that is silent for 20 s.)
func TestKernelsOwn(t *testing.T) {
	labtest.NeedModule(t, "cifs")
	a, _ := within(t, false)
	adopts := loadertest.Has(t, a.Programs, kernel.Adopt)
	look := func(m mounted) conn.Snapshot { return snapshot(t, a.Programs, a.Client, m.local, m.remote) }
	t.Run("ignored", func(t *testing.T) {
		m := mountSMB(t, a)
		if s := look(m); s.HasRecord || s.Options.UserTimeout != 0 {
			t.Errorf("a new one: %+v", s)
		}
		if c := mustCounters(t, a.Programs, "server"); c.OpenedOutbound != 0 {
			t.Errorf("counters %+v", c)
		}
		if !adopts {
			return
		}
		told, _ := a.pass(t, a.Client, plenty)
		if got := told[[2]netip.AddrPort{m.local, m.remote}]; got.Refusal != loader.RefusalKernel {
			t.Errorf("a pass: told %+v", got)
		}
		if s := look(m); s.HasRecord || s.Options.UserTimeout != 0 {
			t.Errorf("after a pass: %+v", s)
		}
		a.setPolicy(t, takeKernels)
		a.settle(t, a.Client)
		if s := look(m); !s.HasRecord || s.Options.UserTimeout != slow.UserTimeout {
			t.Errorf("after a pass with a policy that names it: %+v", s)
		}
	})
	t.Run("managed", func(t *testing.T) {
		a.setPolicy(t, takeKernels)
		m := mountSMB(t, a)
		if s := look(m); !s.HasRecord || s.Options.UserTimeout != slow.UserTimeout {
			t.Errorf("a new one: %+v", s)
		}
		if !adopts {
			return
		}
		a.setPolicy(t, bothWays)
		a.settle(t, a.Client)
		if s := look(m); s.HasRecord || s.Options.UserTimeout != 0 {
			t.Errorf("named no more: %+v", s)
		}
	})
	wantNoFaults(t, a.Programs)
}

// TestKernelsConnect: one that the policy names no more when it is made has lost the
// bound of connect(). (The kernel gives up after 5 s.)
func TestKernelsConnect(t *testing.T) {
	labtest.NeedModule(t, "cifs")
	a, _ := within(t, false)
	a.setPolicy(t, strings.Replace(takeKernels, "kernel_sockets: manage", "kernel_sockets: manage\n  connect_timeout: 20s", 1))
	ln := labtest.Listen(t, a.Server, netip.AddrPortFrom(a.ServerAddr4, 0))
	fault := labtest.Fault(t)(a.DropC2S(labtest.Addr(ln.Addr()).Port()))
	m := mountFrom(t, a, ln, func() {
		var local netip.AddrPort
		labtest.Eventually(t, late, func() bool {
			local = connecting(t, a, labtest.Addr(ln.Addr()))
			return local.IsValid()
		}, "the kernel connects")
		if s := snapshot(t, a.Programs, a.Client, local, labtest.Addr(ln.Addr())); s.Options.UserTimeout != 20*time.Second {
			t.Errorf("while it connects: %+v", s)
		}
		a.setPolicy(t, bothWays)
		labtest.Heal(t, fault)
	})
	if s := snapshot(t, a.Programs, a.Client, m.local, m.remote); s.HasRecord || s.Options.UserTimeout != 0 {
		t.Errorf("when it is made: %+v", s)
	}
	wantNoFaults(t, a.Programs)
}

// connecting is the address from which somebody connects to that server; zero: nobody.
func connecting(t *testing.T, a *adoption, to netip.AddrPort) (from netip.AddrPort) {
	t.Helper()
	c, err := sockdiag.Dial(a.Client)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	err = c.List(sockdiag.Filter{States: sockdiag.States(conn.SynSent), RemotePort: to.Port()}, func(s sockdiag.Socket) error {
		from = s.ID.Local
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return from
}

// TestKernelsServer: so is one that a server in the kernel has accepted, whether it
// listened before the programs came or after.
func TestKernelsServer(t *testing.T) {
	labtest.NeedModule(t, "rds_tcp")
	a, attach := within(t, true)
	// RDS takes one connection from an address: each lab serves one case.
	labs := map[bool][]*lab.Lab{true: {a.Lab, labtest.New(t, lab.Options{})}}
	attach()
	labs[false] = []*lab.Lab{labtest.New(t, lab.Options{}), labtest.New(t, lab.Options{})}
	for older, labs := range labs {
		for i, text := range []string{bothWays, takeKernels} {
			managed := text == takeKernels
			t.Run(fmt.Sprintf("older %v, managed %v", older, managed), func(t *testing.T) {
				a := &adoption{Programs: a.Programs, Lab: labs[i]}
				a.setPolicy(t, text)
				if older {
					loadertest.Need(t, a.Programs, kernel.Adopt) // else nobody knows whose listener it is
					a.pass(t, a.Server, plenty)
				}
				s := serveRDS(t, a)
				if s.HasRecord != managed || (s.Options.UserTimeout == slow.UserTimeout) != managed {
					t.Errorf("served by the kernel: %+v", s)
				}
				wantNoFaults(t, a.Programs)
			})
		}
	}
}

// serveRDS connects to the listener that RDS has in each namespace, and returns the
// server's end.
func serveRDS(t *testing.T, a *adoption) (s conn.Snapshot) {
	t.Helper()
	c := labtest.Dial(t, a.Client, netip.AddrPort{}, netip.AddrPortFrom(a.ServerAddr4, 16385))
	labtest.Eventually(t, late, func() bool {
		err := a.Server.Do(func() (err error) {
			s, err = a.Look(labtest.Addr(c.RemoteAddr()), labtest.Addr(c.LocalAddr()), 0)
			return err
		})
		if err != nil && !errors.Is(err, loader.ErrNotFound) && !errors.Is(err, loader.ErrNotConnection) {
			t.Fatal(err)
		}
		return err == nil && s.State == conn.Established // a look may find the listener
	}, "the server's end")
	return s
}

// TestOpenedMultipath: the listeners of Multipath TCP are made in the kernel, and
// what they accept is an application's all the same, from its opening on.
func TestOpenedMultipath(t *testing.T) {
	a, attach := within(t, true)
	ln := labtest.ListenMultipath(t, a.Server, netip.AddrPortFrom(a.ServerAddr4, 0))
	labtest.DialMultipath(t, a.Client, labtest.Addr(ln.Addr()))
	labtest.Accept(t, ln)
	attach()
	client := labtest.Dial(t, a.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
	server := labtest.Accept(t, ln)
	wantOptions(t, "client", client, slow)
	wantOptions(t, "server", server, slow)
	if loadertest.Has(t, a.Programs, kernel.Adopt) {
		a.settle(t, a.Server)
		wantOptions(t, "server after a pass", server, slow)
	}
}
