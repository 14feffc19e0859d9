// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/prober"
	"github.com/sockhealth/sockhealth/internal/sockdiag"
)

// Agent is a running agent, as far as the checks ask it.
type Agent struct {
	Programs *loader.Programs
	Cgroup   string // where they were attached
	// Namespaces says why some network namespaces are out of sight, nil where none is.
	Namespaces func() error
}

// Examine makes the checks of Examine on what the agent has loaded and attached: the
// same list, by the same rules. It makes no connection, loads nothing and changes
// nothing, so that it can be called at any time.
func (a *Agent) Examine() []Check {
	return examine(func(p *plan) (string, error) { return p.now(a) })
}

// Fault returns what is wrong, as a sentence for people; "" where nothing is, or where
// the check is about a feature that the running kernel is too old for.
func (c *Check) Fault() string {
	if c.Status != Degraded && c.Status != Missing {
		return ""
	}
	running, _, err := kernel.Running()
	for _, f := range kernel.Features() {
		if err == nil && f.String() == c.Name && !f.Expected(running) {
			return ""
		}
	}
	text := c.Detail
	if c.Lost != "" {
		text += "; lost: " + c.Lost
	}
	return fmt.Sprintf("%s [%s]", text, c.Remedy)
}

func cgroupNow(a *Agent) (string, error) { return a.Cgroup, nil }

func namespacesNow(a *Agent) (string, error) { return "all are in sight", a.Namespaces() }

// programsNow asks the kernel what is attached.
func programsNow(a *Agent) (string, error) {
	names, err := a.Programs.Attached()
	if err == nil && len(names) < loader.Attachments {
		err = &loader.MissingError{
			What: "the programs are off their cgroup, nothing is bounded", Remedy: "was it removed? restart the agent",
		}
	}
	return "sockops and setsockopt are attached", err
}

func foreignProgramsNow(a *Agent) (string, error) { return around(a.Cgroup) }

// ownNamespaceNow enters the namespace that it is in.
func ownNamespaceNow(*Agent) (string, error) {
	return "entered its own", here(func(ns *netns.NS) error { return ns.Do(func() error { return nil }) })
}

// inetDiagNow asks for the listeners of a port that none has: the table of connections,
// which may be large, is not walked.
func inetDiagNow(*Agent) (string, error) {
	return "lists sockets", diag(func(c *sockdiag.Conn) error {
		return c.List(sockdiag.Filter{States: sockdiag.States(conn.Listen), RemotePort: 1}, func(sockdiag.Socket) error { return nil })
	})
}

func destroyNow(*Agent) (string, error) {
	return "would close one", diag((*sockdiag.Conn).CanDestroy)
}

// lookNow looks for a connection that is not there.
func lookNow(a *Agent) (string, error) {
	err := here(func(ns *netns.NS) error {
		return ns.Do(func() error {
			_, err := a.Programs.Look(nowhere(1), nowhere(2), 0)
			return err
		})
	})
	if errors.Is(err, loader.ErrNotFound) {
		err = nil
	}
	return "finds nothing where nothing is", err
}

// has is the check of a feature that the programs were loaded with or without.
func has(f kernel.Feature) func(*Agent) (string, error) {
	return func(a *Agent) (string, error) { return "loaded", a.Programs.Lacks(f) }
}

// rawProbeNow opens the socket that would send.
func rawProbeNow(*Agent) (string, error) {
	return "has a socket to send from", route(nowhere(1))
}

func foreignSourceNow(*Agent) (string, error) {
	if err := route(nowhere(1)); err != nil {
		return "", fmt.Errorf("%w: needs raw_probe", errUntested)
	}
	return "finds the way of a transparent proxy's connection", route(foreignAddr(1))
}

// route looks up the way of a connection within this host, with that source.
func route(local netip.AddrPort) error {
	const loopback = 1
	return here(func(ns *netns.NS) error {
		return prober.New().Route(ns, &conn.Snapshot{
			ID:    conn.ID{Netns: ns.Inode(), Family: unix.AF_INET, Local: local, Remote: nowhere(2)},
			State: conn.Established, DstDev: loopback, DstDevUp: true,
		})
	})
}

// nowhere is an address of this host at a port that nobody uses.
func nowhere(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
}

// foreignAddr is no address of this host (TEST-NET-1).
func foreignAddr(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 1}), port)
}

// here calls fn with the namespace of the calling thread.
func here(fn func(*netns.NS) error) error {
	ns, err := netns.Current()
	if err != nil {
		return err
	}
	defer ns.Close()
	return fn(ns)
}

// diag calls fn with a connection to inet_diag.
func diag(fn func(*sockdiag.Conn) error) error {
	return here(func(ns *netns.NS) error {
		c, err := sockdiag.Dial(ns)
		if err != nil {
			return err
		}
		defer c.Close()
		return fn(c)
	})
}
