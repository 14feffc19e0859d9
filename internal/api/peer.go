// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"
	"net"
	"sync"

	"golang.org/x/sys/unix"
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

// Limits of one server. No user can keep the others out: one may hold half.
const (
	maxConns     = 1024
	maxUserConns = maxConns / 2
	maxRefused   = 64 // connections over the limit that still get an answer
)

// quota counts connections.
type quota struct {
	mu      sync.Mutex
	open    int
	refused int
	over    uint64 // connections that found no place, so far
	users   map[uint32]int
}

// enter takes a place for a connection of a user. Without one it takes a place
// among those that are told so (refused), or else returns no release.
func (q *quota) enter(uid uint32) (release func(), refused bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open < maxConns && q.users[uid] < maxUserConns {
		q.open++
		q.users[uid]++
		return sync.OnceFunc(func() { q.leave(uid) }), false
	}
	q.over++
	if q.refused < maxRefused {
		q.refused++
		return sync.OnceFunc(q.leaveRefused), true
	}
	return nil, true
}

func (q *quota) leave(uid uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open--
	if q.users[uid]--; q.users[uid] == 0 {
		delete(q.users, uid)
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
		release, refused := l.quota.enter(cred.Uid)
		if release == nil {
			_ = c.Close()
			continue
		}
		return &peerConn{UnixConn: c, uid: cred.Uid, pid: cred.Pid, refused: refused, release: release}, nil
	}
}
