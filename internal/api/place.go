// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// errElsewhere says that a process is in another pid namespace than the agent.
var errElsewhere = errors.New("another pid namespace")

// withPlace is withPeer, and finds out at once where the peer is: later on its pid may be
// another process's.
func withPlace(ctx context.Context, c net.Conn) context.Context {
	if p, ok := c.(*peerConn); ok && p.uid == 0 {
		p.elsewhere = beside(p.pid)
		if p.elsewhere == nil {
			p.elsewhere = stillThere(p.UnixConn)
		}
	}
	return withPeer(ctx, c)
}

// answersTo reports whether the admin socket answers that peer, and says why if not:
// root, and beside the agent. The mode of the socket file says the first too, but a file can
// be copied, or given another mode by mistake; and who is root in a container that has
// been given the whole run directory is not the node's.
func answersTo(w http.ResponseWriter, p *peerConn) bool {
	switch {
	case p.uid != 0:
		refuse(w, http.StatusForbidden, "the admin socket is for root, you are user %d [run as root]", p.uid)
	case errors.Is(p.elsewhere, errElsewhere):
		refuse(w, http.StatusForbidden, "the admin socket is for root of this node, you are in a container [report on %s, or ask from the agent's own pid namespace]", ReportSocket)
	case p.elsewhere != nil:
		refuse(w, http.StatusForbidden, "the admin socket is for root of this node, and where you are the agent could not find out: %v", p.elsewhere)
	default:
		return true
	}
	return false
}

// beside returns nil where a process is in this one's pid namespace. A container's is
// another one, below the host's, unless it was given the host's. One that is neither this
// nor below this has no pid here at all: it is 0.
func beside(pid int32) error {
	if pid <= 0 {
		return errElsewhere
	}
	own, err := pids("self")
	if err != nil {
		return err
	}
	theirs, err := pids(strconv.Itoa(int(pid)))
	if err != nil {
		return err
	}
	if len(own) != len(theirs) {
		return errElsewhere
	}
	return nil
}

// pids are those of a process in the pid namespaces from that of /proc down to its own
// (Linux 4.1), none where the kernel has no such namespaces. Unlike a look at the
// namespace itself this needs no right to trace the process.
func pids(process string) ([]string, error) {
	b, err := os.ReadFile("/proc/" + process + "/status")
	if err != nil {
		return nil, fmt.Errorf("ask for the pid namespace of a process: %w", err)
	}
	lines := strings.Split(string(b), "\n")
	i := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "NSpid:") })
	if i < 0 {
		return nil, nil
	}
	return strings.Fields(strings.TrimPrefix(lines[i], "NSpid:")), nil
}

// stillThere returns nil where the process that connected has not ended, so that what was
// just read of its pid was its own. Before Linux 6.5 (SO_PEERPIDFD) that is taken for
// granted: it connected a moment ago.
func stillThere(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return fmt.Errorf("ask socket for its peer: %w", err)
	}
	var optErr error
	err = raw.Control(func(fd uintptr) {
		var process int
		process, optErr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		if optErr != nil {
			return
		}
		defer unix.Close(process)
		// A pidfd is readable when its process has ended.
		var ended int
		ended, optErr = unix.Poll([]unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}, 0)
		if optErr == nil && ended > 0 {
			optErr = unix.ESRCH
		}
	})
	if errors.Is(optErr, unix.ENOPROTOOPT) {
		return nil
	}
	if err = errors.Join(err, optErr); err != nil {
		return fmt.Errorf("ask whether the process that connected is still there: %w", err)
	}
	return nil
}
