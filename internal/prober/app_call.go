// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/netns"
)

const (
	// maxConnect bounds the handshake, as the probe's timeout does.
	maxConnect = 3 * time.Second
	// goodbye is how long a peer that has answered may take to finish its
	// reply, and again to end the connection.
	goodbye = time.Second
	// pulse is the time between two of the kernel's keepalives on a silent
	// connection, and between two looks at what became of them.
	pulse     = time.Second
	pulseLook = pulse / 4
	// longSleep of this machine during a question takes away what its silence
	// says: the peer may have answered, and given up, meanwhile.
	longSleep = 10 * time.Second
)

// place asks one question on a connection of its own. It is an inquirer.
func (a *Apps) place(ctx context.Context, ns *netns.NS, q question) (outcome AppOutcome, hangUp func()) {
	before := a.slept()
	tcp, err := dial(ctx, ns, q)
	if err != nil {
		return AppNoConnection, func() {}
	}
	c := newCall(tcp)
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = q.talk(a.userAgent)(c) // how it ended is of no consequence
	}()
	outcome = c.watch(ctx, q.timeout, over)
	if outcome == AppSilent && a.slept()-before > longSleep {
		outcome = AppNoConnection
	}
	return outcome, func() {
		if outcome == AppAnswered {
			wait(ctx, over, goodbye)
		}
		_ = c.Close()
		<-over
	}
}

// wait waits until over is closed, ctx ends or the time has passed.
func wait(ctx context.Context, over <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-over:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// dial connects from inside ns. The kernel sends a keepalive each second of
// silence, by which the connection's own counters tell a silent application
// from a lost path.
func dial(ctx context.Context, ns *netns.NS, q question) (*net.TCPConn, error) {
	d := net.Dialer{
		Timeout:         min(maxConnect, q.timeout),
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: pulse, Interval: pulse},
	}
	d.SetMultipathTCP(false) // a subflow's counters would say nothing of the rest
	var c net.Conn
	err := ns.Do(func() (err error) {
		c, err = d.DialContext(ctx, q.network(), q.to.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("connect to application at %s: %w", q.to, err)
	}
	return c.(*net.TCPConn), nil
}

// call is the connection of one question. It notices the first byte that is
// read, and ends politely.
type call struct {
	net.Conn // the interface alone, so that nothing reads past Read
	tcp      *net.TCPConn
	once     sync.Once
	heard    chan struct{} // closed at the first byte
	end      func() error
}

func newCall(tcp *net.TCPConn) *call {
	c := &call{Conn: tcp, tcp: tcp, heard: make(chan struct{})}
	c.end = sync.OnceValue(c.finish)
	return c
}

// Read is net.Conn's.
func (c *call) Read(b []byte) (int, error) {
	n, err := c.tcp.Read(b)
	if n > 0 {
		c.once.Do(func() { close(c.heard) })
	}
	return n, err
}

// Close ends the connection, once.
func (c *call) Close() error { return c.end() }

// finish ends the connection. What a talkative peer still says is read for a
// moment, up to its own end: to close over unread bytes is to send a reset,
// which services log as an error of theirs.
func (c *call) finish() error {
	if c.hasHeard() && c.tcp.CloseWrite() == nil {
		_ = c.tcp.SetReadDeadline(time.Now().Add(goodbye))
		_, _ = io.Copy(io.Discard, io.LimitReader(c.tcp, maxReply))
	}
	return c.tcp.Close()
}

func (c *call) hasHeard() bool {
	select {
	case <-c.heard:
		return true
	default:
		return false
	}
}

// watch waits for the first byte, the end of the connection, or the timeout.
// over is closed when the talk has ended.
func (c *call) watch(ctx context.Context, timeout time.Duration, over <-chan struct{}) AppOutcome {
	deadline, looks := time.NewTimer(timeout), time.NewTicker(pulseLook)
	defer deadline.Stop()
	defer looks.Stop()
	idle, err := c.keepaliveIdle()
	reached := err == nil // the whole time
	for {
		var last bool
		select {
		case <-c.heard:
			return AppAnswered
		case <-over:
			if c.hasHeard() {
				return AppAnswered
			}
			return AppNoConnection
		case <-ctx.Done():
			return AppNoConnection
		case <-looks.C:
		case <-deadline.C:
			last = true
		}
		info, err := c.info()
		reached = reached && err == nil && inReach(info, idle, timeout)
		if last {
			return c.silence(info, reached)
		}
	}
}

// silence says what it means that no byte was seen until the timeout.
func (c *call) silence(info *unix.TCPInfo, reached bool) AppOutcome {
	switch {
	case c.hasHeard() || info != nil && payload(info) > 0:
		// Where this process itself was held up, the answer may have come
		// in time and wait to be read.
		return AppAnswered
	case reached && conn.State(info.State) == conn.Established && delivered(info):
		return AppSilent
	}
	return AppNoConnection
}

// payload returns the bytes that came, without the one that a FIN adds
// (kernel-facts L6).
func payload(info *unix.TCPInfo) uint64 {
	if info.Bytes_received > 0 && conn.State(info.State).PeerFinished() {
		return info.Bytes_received - 1
	}
	return info.Bytes_received
}

// delivered reports whether the peer acknowledged all that was sent, and
// something was. A connect succeeds, seen from this end, as soon as the peer
// offers the connection; where its accept queue is full by then, it throws the
// rest of the handshake away and everything that follows. The SYN counts as one
// acknowledged byte.
func delivered(info *unix.TCPInfo) bool {
	return info.Bytes_acked > 1 && info.Unacked == 0 && info.Notsent_bytes == 0
}

// inReach reports whether the peer's host was heard as lately as it ought to
// have been: it acknowledges the kernel's keepalives, whatever its application
// does. An answer that is lost is sent again after about as long as the path was
// away, so a wait may forgive outages that are short beside it, and no others.
func inReach(info *unix.TCPInfo, idle, timeout time.Duration) bool {
	const late = 700 * time.Millisecond // of timers, the kernel's and ours
	limit := max(idle+late, timeout/4) + time.Duration(info.Rtt)*time.Microsecond
	return time.Duration(info.Last_ack_recv)*time.Millisecond <= limit
}

// keepaliveIdle returns after how much silence the kernel sends a keepalive. It
// may be longer than asked for, where a policy holds this connection, too.
func (c *call) keepaliveIdle() (time.Duration, error) {
	var seconds int
	err := c.control(func(fd int) (err error) {
		seconds, err = unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
		return err
	})
	return time.Duration(seconds) * time.Second, err
}

// info reads TCP_INFO; nil with an error.
func (c *call) info() (info *unix.TCPInfo, err error) {
	err = c.control(func(fd int) (err error) {
		info, err = unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read TCP_INFO: %w", err)
	}
	return info, nil
}

// control calls fn with the connection's descriptor.
func (c *call) control(fn func(fd int) error) error {
	raw, err := c.tcp.SyscallConn()
	if err != nil {
		return err
	}
	var fnErr error
	return errors.Join(raw.Control(func(fd uintptr) { fnErr = fn(int(fd)) }), fnErr)
}
