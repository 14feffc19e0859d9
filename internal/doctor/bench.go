// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/sockets"
)

// bench is what the checks work on. Each field is there once the check has
// passed that makes it.
type bench struct {
	ctx context.Context
	// lacking says that one of the loader's requirements is missing.
	lacking  bool
	programs *loader.Programs
	ns       *netns.NS
	// pair is a connection inside ns.
	*pair
}

// pair is a connection; id names the client's end.
type pair struct {
	client, server *net.TCPConn
	id             conn.ID
}

// open makes the namespace and the connection.
func (b *bench) open() (err error) {
	if b.ns, err = netns.New(); err != nil {
		return err
	}
	b.pair, err = b.connect()
	return err
}

// connect makes a connection in the namespace, as plain as can be.
func (b *bench) connect() (*pair, error) {
	p := new(pair)
	if err := b.ns.Do(func() error { return p.connect(b) }); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// connect makes it in the calling thread's namespace. After an error it may be
// half there.
func (p *pair) connect(b *bench) error {
	cfg := net.ListenConfig{KeepAlive: -1}
	cfg.SetMultipathTCP(false)
	l, err := cfg.Listen(b.ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	d := net.Dialer{KeepAlive: -1, Timeout: answerWithin}
	c, err := d.DialContext(b.ctx, "tcp4", l.Addr().String())
	if err != nil {
		return err
	}
	p.client = c.(*net.TCPConn)
	if err := l.(*net.TCPListener).SetDeadline(time.Now().Add(answerWithin)); err != nil {
		return err
	}
	s, err := l.Accept()
	if err != nil {
		return err
	}
	p.server = s.(*net.TCPConn)
	p.id = conn.ID{
		Netns: b.ns.Inode(), Family: unix.AF_INET,
		Local: addrPort(c.LocalAddr()), Remote: addrPort(c.RemoteAddr()),
	}
	p.id.Cookie, err = cookie(p.client)
	return err
}

// close closes both ends, as far as they are there.
func (p *pair) close() {
	for _, c := range []*net.TCPConn{p.client, p.server} {
		if c != nil {
			_ = c.Close()
		}
	}
}

func addrPort(a net.Addr) netip.AddrPort {
	ap := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// cookie reads SO_COOKIE.
func cookie(c *net.TCPConn) (n uint64, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	ctlErr := raw.Control(func(fd uintptr) { n, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE) })
	return n, errors.Join(err, ctlErr)
}

// ready reports what a check lacks that runs a program on the connection.
func (b *bench) ready() error {
	switch {
	case b.programs == nil:
		return fmt.Errorf("%w: needs the programs", errUntested)
	case b.pair == nil:
		return fmt.Errorf("%w: needs a network namespace", errUntested)
	}
	return nil
}

// look looks at the client's end.
func (b *bench) look() (conn.Snapshot, error) {
	return sockets.New(b.programs).Get(b.ns, b.id.Local, b.id.Remote)
}

// errSilent says that something did not show in time.
var errSilent = errors.New("nothing came")

// await looks until the client's end is as wished.
func (b *bench) await(wish func(*conn.Snapshot) bool) (conn.Snapshot, error) {
	ctx, cancel := context.WithTimeout(b.ctx, answerWithin)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		s, err := b.look()
		if err != nil || wish(&s) {
			return s, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return s, errSilent
		}
	}
}

// close lets go of everything; the namespace is gone with it.
func (b *bench) close() {
	if b.pair != nil {
		b.pair.close()
	}
	if b.ns != nil {
		_ = b.ns.Close()
	}
	if b.programs != nil {
		_ = b.programs.Close()
	}
}
