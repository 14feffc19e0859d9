// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/sockhealth/sockhealth/internal/agent"
	"github.com/sockhealth/sockhealth/internal/netns"
)

// caller says who is at the other end, or answers where the kernel does not
// tell. The caller closes its NS.
//
// The user and the process are those that connected, the namespace is that of
// the socket they connected with (kernel-facts S18). A descriptor that is passed
// on later speaks for who connected: the kernel took both down at connect(), and
// whoever gives a connection away gives its word with it. A caller can only pass
// on less than it has: a connection made by a user never becomes another's.
func (h *reports) caller(w http.ResponseWriter, r *http.Request) (agent.Caller, bool) {
	peer := peerOf(r)
	ns, err := netns.Caller(peer)
	switch {
	case err == nil:
		c := agent.Caller{NS: ns, UID: peer.uid, PID: peer.pid}
		c.Owner = h.owners.owns(c)
		return c, true
	case errors.Is(err, netns.ErrPermission):
		refuse(w, http.StatusForbidden, "the agent has no rights over your network namespace: it needs CAP_NET_ADMIN there [start it as root of the host, outside user namespaces]")
	default:
		h.log.Error("ask who reports", "uid", peer.uid, "pid", peer.pid, "err", err)
		refuse(w, http.StatusInternalServerError, "the agent could not find out who reports: see its log")
	}
	return agent.Caller{}, false
}

// owners knows who is heard about every socket of a namespace. The zero value
// says that nobody is.
type owners struct {
	// all says that everybody is: the callers are root on the admin socket.
	all bool
	// host has the inodes of the agent's own network namespace and of the
	// host's, nil where they are not known. They live as long as the agent.
	host map[uint32]bool
}

// learn finds out which namespaces are the host's. Where that fails nobody owns
// any.
func (o *owners) learn(log *slog.Logger) {
	own, err := netns.Current()
	if err != nil {
		log.Error("ask which network namespace is our own: callers are heard about their own user's sockets alone", "err", err)
		return
	}
	defer own.Close()
	o.host = map[uint32]bool{own.Inode(): true}
	// Process 1 is the host's own where its processes are in sight.
	if first, err := netns.Open("/proc/1/ns/net"); err == nil {
		o.host[first.Inode()] = true
		_ = first.Close()
	}
}

// owns reports whether the caller owns the user namespace of its network
// namespace. On the host that would be root, who has the admin socket for it:
// there a container that shares the host's network is root, too.
func (o *owners) owns(c agent.Caller) bool {
	if o.all {
		return true
	}
	if o.host == nil || o.host[c.NS.Inode()] {
		return false
	}
	uid, err := c.NS.OwnerUID()
	return err == nil && uid == c.UID
}

// peerOf returns the connection a request came by.
func peerOf(r *http.Request) *peerConn {
	p, ok := r.Context().Value(peerKey{}).(*peerConn)
	if !ok {
		panic(fmt.Sprintf("request by %s without its connection", r.RemoteAddr)) // newServer puts it there
	}
	return p
}
