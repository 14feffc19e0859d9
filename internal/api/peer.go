// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"
	"net"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/netns"
)

// peerConn is an accepted connection and who is at its other end, as the kernel
// says.
type peerConn struct {
	*net.UnixConn
	uid     uint32
	pid     int32
	refused bool // over the limit: to be answered with that, and no more
	// elsewhere is why root's connection to the admin socket does not count as the
	// node's, nil where it does.
	elsewhere error
	release   func()
}

// Close gives the connection's place back.
func (c *peerConn) Close() error {
	c.release()
	return c.UnixConn.Close()
}

// peerKey finds the connection in a request's context.
type peerKey struct{}

func withPeer(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, c)
}

// credentials asks who connected.
func credentials(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("ask socket for its peer: %w", err)
	}
	var cred *unix.Ucred
	var optErr error
	err = raw.Control(func(fd uintptr) {
		cred, optErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err == nil {
		err = optErr
	}
	if err != nil {
		return nil, fmt.Errorf("ask socket for its peer: %w", err)
	}
	return cred, nil
}

// Limits of one server. Nobody can keep the others out: a network namespace gets a
// place as long as it holds fewer than are free, and a user there as long as it holds
// fewer than the namespace may still have. Namespaces come first: who is root in a
// container is as many users as it likes, and has one namespace.
const (
	maxConns      = 1024
	maxNetnsConns = maxConns / 2       // what one can hold where nobody else has any
	maxUserConns  = (maxConns + 2) / 3 // the same of one user
	maxRefused    = 64                 // connections over the limit that still get an answer
)

// quota counts connections.
type quota struct {
	mu      sync.Mutex
	open    int
	refused int
	over    uint64         // connections that found no place, so far
	netns   map[uint32]int // by inode
	users   map[identity]int
}

func newQuota() *quota { return &quota{netns: make(map[uint32]int), users: make(map[identity]int)} }

// enter takes a place for a connection of a user in a namespace. Without one it takes a
// place among those that are told so (refused), or else returns no release.
func (q *quota) enter(who identity) (release func(), refused bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	// What the namespace may still have; what its users have is among what it has.
	if left := maxConns - q.open - q.netns[who.netns]; q.users[who] < left {
		q.open++
		q.netns[who.netns]++
		q.users[who]++
		return sync.OnceFunc(func() { q.leave(who) }), false
	}
	q.over++
	if q.refused < maxRefused {
		q.refused++
		return sync.OnceFunc(q.leaveRefused), true
	}
	return nil, true
}

func (q *quota) leave(who identity) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open--
	if q.netns[who.netns]--; q.netns[who.netns] == 0 {
		delete(q.netns, who.netns)
	}
	if q.users[who]--; q.users[who] == 0 {
		delete(q.users, who)
	}
}

func (q *quota) leaveRefused() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refused--
}

// listener accepts connections with their peers and within the quota.
type listener struct {
	*net.UnixListener
	quota *quota
}

// Accept returns a *peerConn. It drops connections that exceed every limit or
// whose client cannot be told: an error would end the server.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		cred, err := credentials(c)
		if err != nil {
			_ = c.Close()
			continue
		}
		release, refused := l.quota.enter(identity{cred.Uid, inodeOf(c)})
		if release == nil {
			_ = c.Close()
			continue
		}
		return &peerConn{UnixConn: c, uid: cred.Uid, pid: cred.Pid, refused: refused, release: release}, nil
	}
}

// inodeOf returns which network namespace a connection comes from. All where that cannot
// be asked, for lack of rights over it, count as one, 0.
func inodeOf(c *net.UnixConn) uint32 {
	ns, err := netns.Caller(c)
	if err != nil {
		return 0
	}
	defer ns.Close()
	return ns.Inode()
}
