// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"errors"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"golang.org/x/sys/unix"
)

// The errors that callers tell apart.
var (
	// ErrGone says that no such socket is there: it has ended, or its tuple now
	// belongs to another cookie, a listener or a connection in TIME_WAIT. A
	// benign race.
	ErrGone = errors.New("socket is gone")
	// ErrInvalid says that an ID does not name one socket, or names it without
	// the cookie where that is needed.
	ErrInvalid = errors.New("not a complete socket id")
	// ErrRefused says that the socket is there but not one to destroy: it is
	// opening or closing, or the application has closed it already.
	ErrRefused = errors.New("not a socket to destroy")
	// ErrUnsupported says that the kernel lacks what was asked for:
	// CONFIG_INET_DIAG and CONFIG_INET_TCP_DIAG (or their modules cannot be
	// loaded), or CONFIG_INET_DIAG_DESTROY, since Linux 4.5. It is never said
	// of a socket that is gone, nor ErrGone of a kernel without inet_diag.
	ErrUnsupported = errors.New("not supported by this kernel")
	// ErrPermission says that CAP_NET_ADMIN over the namespace is missing.
	ErrPermission = errors.New("permission denied")
	// ErrInterrupted says that a list was changed while it was read: some
	// sockets may be missing from it or in it twice.
	ErrInterrupted = errors.New("list changed while it was read")
)

// Timer is the timer that is running for a socket.
type Timer uint8

// The timers. The values are the kernel's.
const (
	TimerNone       Timer = 0
	TimerRetransmit Timer = 1 // retransmission, reordering or loss probe
	TimerKeepalive  Timer = 2 // keepalive, or the end of FIN_WAIT2
	TimerTimeWait   Timer = 3
	TimerProbe      Timer = 4 // zero-window probe
)

// Socket is what inet_diag tells about one socket at one moment.
type Socket struct {
	conn.ID
	State conn.State
	// Timer is the timer running, due in Expires; Retries counts the attempts
	// made with it so far.
	Timer   Timer
	Expires time.Duration
	Retries uint8
	// RQueue and WQueue are bytes received but not read, and written but not
	// acknowledged. Of a listener: connections that wait, and their limit.
	RQueue, WQueue uint32
	// UID owns the socket, in the reader's user namespace.
	UID uint32
	// Inode is the socket's, 0 where no descriptor holds it any more.
	Inode uint32
	// Shutdown has unix.RCV_SHUTDOWN (1) and unix.SEND_SHUTDOWN (2).
	Shutdown    uint8
	TOS, TClass uint8 // IP_TOS, IPV6_TCLASS
	// Mark is SO_MARK, 0 also where CAP_NET_ADMIN is missing.
	Mark uint32
	// CgroupID is the inode number of the socket's cgroup v2, 0: not told.
	CgroupID uint64
	// MD5 says that TCP-MD5 keys are set; false also where CAP_NET_ADMIN is
	// missing.
	MD5 bool
	// ULP names the upper layer protocol ("tls", "mptcp"), "" for none.
	ULP string
	// TCPInfo is nil where it was not asked for, and where the state has none.
	TCPInfo *unix.TCPInfo
}

// Filter says which sockets to list. The zero Filter lists all.
type Filter struct {
	// Family is unix.AF_INET or unix.AF_INET6, 0 for both. IPv4-mapped sockets
	// are of AF_INET6 (kernel-facts C7).
	Family uint8
	// States is a mask made by States, 0 for all.
	States uint32
	// LocalPort and RemotePort must be equal, where not 0.
	LocalPort, RemotePort uint16
	// Info asks for TCPInfo, at about 280 bytes a socket.
	Info bool
}

// States makes the mask of a Filter.
func States(states ...conn.State) uint32 {
	var mask uint32
	for _, s := range states {
		mask |= 1 << s
	}
	return mask
}
