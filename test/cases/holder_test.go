// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"net/rpc"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// Holder holds connections in a process of its own, which is in one namespace and
// in the agent's cgroup: one process has not descriptors enough for all of a
// large test (kernel-facts S16). It is an application to the agent, like any
// other. Its methods are called by net/rpc.
type Holder struct {
	ns *netns.NS

	mu    sync.Mutex
	conns []*held
	err   error // of a listener
}

// held is one connection.
type held struct {
	*net.TCPConn
	wish, port int
	filled     int // bytes
}

// Listening is what Holder.Listen is told: every application's wishes in turn are
// set on the connections that it accepts.
type Listening struct {
	Addr   netip.AddrPort
	Wishes []conn.Options
}

// Dialing is what Holder.Dial is told.
type Dialing struct {
	To     netip.AddrPort
	Mapped bool
	N      int
	Wishes []conn.Options
}

// Seen is a connection as its own process sees it.
type Seen struct {
	Local, Remote netip.AddrPort
	Port          int // the service's
	Wish          int // of Wishes
	Options       conn.Options
	State         conn.State
	Err           string // SO_ERROR
	Blocked       bool   // bytes wait for the peer's window
}

// Listen accepts connections from now on.
func (h *Holder) Listen(l Listening, _ *int) error {
	cfg := net.ListenConfig{KeepAlive: -1, Control: func(_, _ string, raw syscall.RawConn) error {
		var err error // small, so that a peer's window is soon shut
		return errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 16384) }), err)
	}}
	cfg.SetMultipathTCP(false)
	network := "tcp"
	if l.Addr.Addr().Is4() {
		network = "tcp4"
	}
	ln, err := cfg.Listen(context.Background(), network, l.Addr.String())
	if err != nil {
		return err
	}
	go func() {
		for n := 0; ; n++ {
			c, err := ln.(*net.TCPListener).AcceptTCP()
			wish := n % len(l.Wishes)
			if err == nil {
				err = ask(c, l.Wishes[wish])
			}
			h.mu.Lock()
			if h.err = err; err == nil {
				h.conns = append(h.conns, &held{TCPConn: c, wish: wish, port: int(l.Addr.Port())})
			}
			h.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return nil
}

// Dial opens connections, one after the other.
func (h *Holder) Dial(d Dialing, _ *int) error {
	for n := range d.N {
		wish := n % len(d.Wishes)
		c, err := labtest.Dialer{NS: h.ns, Mapped: d.Mapped}.Try(d.To)
		if err == nil {
			err = ask(c, d.Wishes[wish])
		}
		if err != nil {
			return fmt.Errorf("connection %d to %s: %w", n, d.To, err)
		}
		h.mu.Lock()
		h.conns = append(h.conns, &held{TCPConn: c, wish: wish, port: int(d.To.Port())})
		h.mu.Unlock()
	}
	return nil
}

// See looks at every connection.
func (h *Holder) See(_ int, all *[]Seen) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.conns {
		s := Seen{Local: labtest.Addr(c.LocalAddr()), Remote: labtest.Addr(c.RemoteAddr()), Port: c.port, Wish: c.wish}
		if err := control(c, s.look); err != nil {
			return err
		}
		*all = append(*all, s)
	}
	return h.err
}

// look reads what a descriptor tells.
func (s *Seen) look(fd int) (err error) {
	s.Options, err = optionsOf(fd)
	if err != nil {
		return err
	}
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return err
	}
	s.State, s.Blocked = conn.State(info.State), info.Notsent_bytes > 0 && info.Unacked == 0
	errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if errno != 0 {
		s.Err = syscall.Errno(errno).Error()
	}
	return err
}

// Fill sends to a port until nothing more is taken.
func (h *Holder) Fill(port int, _ *int) error {
	return h.each(port, func(c *held) error {
		for b := make([]byte, 16384); ; {
			_ = c.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
			n, err := c.Write(b)
			c.filled += n
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return c.SetWriteDeadline(time.Time{})
			}
			if err != nil {
				return err
			}
		}
	})
}

// Filled returns how many bytes Fill has sent to a port.
func (h *Holder) Filled(port int, bytes *int) error {
	return h.each(port, func(c *held) error {
		*bytes += c.filled
		return nil
	})
}

// Drain reads from all connections of a port at once, until nothing has come for a
// second, and returns how many bytes did.
func (h *Holder) Drain(port int, bytes *int) error {
	var mu sync.Mutex
	var work sync.WaitGroup
	var errs []error
	_ = h.each(port, func(c *held) error {
		work.Go(func() {
			n, err := drain(c.TCPConn)
			mu.Lock()
			defer mu.Unlock()
			*bytes += n
			errs = append(errs, err)
		})
		return nil
	})
	work.Wait()
	return errors.Join(errs...)
}

func drain(c *net.TCPConn) (total int, err error) {
	for b := make([]byte, 1<<16); ; {
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		n, err := c.Read(b)
		total += n
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// Send sends one byte on each connection of a port.
func (h *Holder) Send(port int, _ *int) error {
	return h.each(port, func(c *held) error {
		_, err := c.Write([]byte{1})
		return err
	})
}

// Receive reads one byte from each connection of a port.
func (h *Holder) Receive(port int, _ *int) error {
	return h.each(port, func(c *held) error {
		_ = c.SetReadDeadline(time.Now().Add(late))
		_, err := io.ReadFull(c, make([]byte, 1))
		return err
	})
}

func (h *Holder) each(port int, fn func(*held) error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.conns {
		if c.port != port {
			continue
		}
		if err := fn(c); err != nil {
			return fmt.Errorf("%s to %s: %w", c.LocalAddr(), c.RemoteAddr(), err)
		}
	}
	return nil
}

// hold is the process.
func hold() {
	ns, err := netns.Current()
	if err == nil {
		err = rpc.Register(&Holder{ns: ns})
	}
	if err != nil {
		log.Fatal(err)
	}
	rpc.ServeConn(stdio{os.Stdin, os.Stdout})
}

// stdio is a pipe each way.
type stdio struct {
	io.ReadCloser
	io.Writer
}

// holder is one such process, seen from the test.
type holder struct {
	rpc *rpc.Client
}

// newHolder starts one in a namespace and in the agent's cgroup. It ends with the
// test.
func (n *node) newHolder(t *testing.T, ns *netns.NS) *holder {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := n.command(t, exe)
	cmd.Args[0], cmd.Stderr = "holder", os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: n.cgroup.FD()}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	labtest.Start(t, ns, cmd)
	h := &holder{rpc.NewClient(struct {
		io.Reader
		io.WriteCloser
	}{out, in})}
	t.Cleanup(func() {
		_ = h.rpc.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return h
}

// call has it do something.
func call[T any](t *testing.T, h *holder, method string, arg any) (reply T) {
	t.Helper()
	if err := h.rpc.Call("Holder."+method, arg, &reply); err != nil {
		t.Fatalf("%s: %v", method, err)
	}
	return reply
}

// see looks at all that it holds.
func (h *holder) see(t *testing.T) []Seen {
	t.Helper()
	return call[[]Seen](t, h, "See", 0)
}
