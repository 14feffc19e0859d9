// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/mdlayher/netlink"
	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/netns"
	"golang.org/x/sys/unix"
)

// extras is what a look asks for beside the fixed part; bits as in wire.go.
const extras = 1<<(attrTOS-1) | 1<<(attrTClass-1)

// Conn is a connection to inet_diag of one network namespace.
type Conn struct {
	inode    uint32
	protocol uint8      // 0: TCP; another in tests alone
	mu       sync.Mutex // one request and its whole answer at a time
	nl       *netlink.Conn
	answered bool // a handler was there; held by mu
}

// Dial connects to inet_diag of ns; nil means the calling thread's namespace.
// The handle is not needed afterwards. It asks nothing: that the kernel has no
// inet_diag for TCP is told by the first request.
func Dial(ns *netns.NS) (*Conn, error) {
	if ns == nil {
		own, err := netns.Current()
		if err != nil {
			return nil, fmt.Errorf("connect to inet_diag: %w", err)
		}
		defer own.Close()
		ns = own
	}
	c := &Conn{inode: ns.Inode()}
	err := ns.Do(func() (err error) {
		c.nl, err = netlink.Dial(unix.NETLINK_SOCK_DIAG, nil)
		return err
	})
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		err = fmt.Errorf("%w (NETLINK_SOCK_DIAG): %w", ErrUnsupported, err)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to inet_diag of %s: %w", ns, err)
	}
	return c, nil
}

// Close ends the connection. Requests under way fail.
func (c *Conn) Close() error { return c.nl.Close() }

// Netns returns the inode number of the namespace.
func (c *Conn) Netns() uint32 { return c.inode }

// Get looks at the one socket with this family, tuple and bound device and,
// where it is not 0, this cookie; it fills TCPInfo. id.Netns is this
// connection's or 0. The error wraps ErrGone where there is none such,
// ErrInvalid and ErrUnsupported. Without a cookie the answer may be a connection
// in TIME_WAIT.
func (c *Conn) Get(id conn.ID) (Socket, error) {
	s, err := c.get(id)
	if err != nil {
		return Socket{}, fmt.Errorf("look at %s: %w", id, err)
	}
	return s, nil
}

func (c *Conn) get(id conn.ID) (Socket, error) {
	if err := c.mine(id); err != nil {
		return Socket{}, err
	}
	req := exact(id)
	req.ext = extras | 1<<(attrInfo-1)
	answer, err := c.execute(unix.SOCK_DIAG_BY_FAMILY, 0, req)
	if err != nil {
		return Socket{}, err
	}
	if len(answer) != 1 {
		return Socket{}, fmt.Errorf("%d answers", len(answer))
	}
	s, err := decode(answer[0].Data)
	if err != nil {
		return Socket{}, err
	}
	s.Netns = c.inode
	// The kernel falls back to a listener of that port, finds a socket without
	// a device by any, and an AF_INET socket by its IPv4-mapped addresses.
	got := s.ID
	want := conn.ID{
		Netns: c.inode, Family: id.Family, Ifindex: id.Ifindex,
		Local: id.Local, Remote: id.Remote, Cookie: s.Cookie,
	}
	if got != want || s.State == conn.Listen {
		return Socket{}, ErrGone
	}
	return s, nil
}

// mine refuses an ID that is incomplete or of another namespace, in which this
// connection could find a stranger with the same tuple.
func (c *Conn) mine(id conn.ID) error {
	if id.Netns != 0 && id.Netns != c.inode {
		return fmt.Errorf("%w: not in netns %d", ErrGone, c.inode)
	}
	return check(id)
}

// Destroy closes one socket: its application sees ECONNABORTED, its peer a
// reset. id names it in full: namespace, family, tuple, device and cookie. The
// error wraps ErrGone where it is not there (any more), ErrInvalid where id is
// incomplete, ErrRefused where its state is not ESTABLISHED, CLOSE_WAIT,
// FIN_WAIT1 or FIN_WAIT2 or no descriptor holds it (kernel-facts C5, C6),
// ErrUnsupported and ErrPermission. nil means that the kernel has done it.
func (c *Conn) Destroy(id conn.ID) error {
	if err := c.destroy(id); err != nil {
		return fmt.Errorf("destroy %s: %w", id, err)
	}
	return nil
}

func (c *Conn) destroy(id conn.ID) error {
	if id.Cookie == 0 || id.Cookie == noCookie || id.Netns == 0 {
		return fmt.Errorf("%w: no cookie or no namespace", ErrInvalid)
	}
	// The look keeps a listener safe whose cookie was given with the tuple of
	// a connection, and TIME_WAIT, which has kept its socket's cookie in newer
	// kernels. Between the two requests the socket can only end.
	s, err := c.get(id)
	if err != nil {
		return err
	}
	if s.State == conn.TimeWait {
		return fmt.Errorf("%w: %s", ErrGone, s.State)
	}
	if !s.State.Judgeable() {
		return fmt.Errorf("%w: %s", ErrRefused, s.State)
	}
	if s.Inode == 0 {
		return fmt.Errorf("%w: closed by its application", ErrRefused)
	}
	_, err = c.execute(unix.SOCK_DESTROY, netlink.Acknowledge, exact(id))
	return err
}

// CanDestroy returns nil where the kernel can do what Destroy asks: it is asked to
// destroy a socket that cannot be there. The error wraps ErrUnsupported or
// ErrPermission.
func (c *Conn) CanDestroy() error {
	nowhere := netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	_, err := c.execute(unix.SOCK_DESTROY, netlink.Acknowledge, exact(conn.ID{Family: unix.AF_INET, Local: nowhere, Remote: nowhere}))
	if errors.Is(err, ErrGone) {
		return nil
	}
	if err == nil {
		err = errors.New("a socket without addresses was destroyed")
	}
	return fmt.Errorf("ask whether inet_diag destroys: %w", err)
}

// execute sends one request and returns its answer.
func (c *Conn) execute(kind netlink.HeaderType, flags netlink.HeaderFlags, req request) ([]netlink.Message, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	req.protocol = c.protocol
	answer, err := c.nl.Execute(netlink.Message{
		Header: netlink.Header{Type: kind, Flags: netlink.Request | flags},
		Data:   req.encode(),
	})
	if !errors.Is(err, unix.ENOENT) {
		c.answered = c.answered || err == nil
		return answer, edge(err)
	}
	var listed error
	if !c.answered {
		listed = c.probe()
		c.answered = listed == nil
	}
	return nil, enoent(err, listed)
}

// probe asks whether there is a handler: it lists the sockets that are in no
// state, without a search, which succeeds wherever there is one. To an exact
// request ENOENT is the answer of a handler that finds no socket as well as of
// the dispatch that finds no handler (sock_diag_lock_handler and
// inet_diag_lock_handler, which load the modules first where they can).
// The caller holds mu.
func (c *Conn) probe() error {
	return c.dumpLocked(request{family: unix.AF_INET}, func(Socket) error { return nil })
}

// enoent decides what ENOENT to an exact request means. listed is the answer to
// probe, nil where there is a handler; where it is another error than
// ErrUnsupported nothing is known.
func enoent(exact, listed error) error {
	if listed != nil {
		return listed
	}
	return edge(exact)
}

// List calls fn for each socket of the namespace that the filter lets through,
// in no order, while it reads them: the list is no snapshot. It stops at fn's
// first error and returns that. fn must not use this Conn. The error wraps
// ErrUnsupported, or ErrInterrupted where the kernel says that the list is not
// consistent; fn has had all of it then.
func (c *Conn) List(f Filter, fn func(Socket) error) error {
	families := []uint8{unix.AF_INET, unix.AF_INET6}
	if f.Family != 0 {
		families = []uint8{f.Family}
	}
	req := request{states: f.States, ext: extras}
	if req.states == 0 {
		req.states = allStates
	}
	if f.Info {
		req.ext |= 1 << (attrInfo - 1)
	}
	for _, req.family = range families {
		if err := c.dump(req.ports(f.LocalPort, f.RemotePort), fn); err != nil {
			return fmt.Errorf("list sockets of netns %d: %w", c.inode, err)
		}
	}
	return nil
}

// dump reads one list to its end, whatever fn says.
func (c *Conn) dump(req request, fn func(Socket) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dumpLocked(req, fn)
}

// dumpLocked is dump for who holds mu.
func (c *Conn) dumpLocked(req request, fn func(Socket) error) error {
	req.protocol = c.protocol
	sent, err := c.nl.Send(netlink.Message{
		Header: netlink.Header{Type: unix.SOCK_DIAG_BY_FAMILY, Flags: netlink.Request | netlink.Dump},
		Data:   req.encode(),
	})
	if err != nil {
		return edge(err)
	}
	interrupted := false
	for m, err := range c.nl.ReceiveIter() {
		if err == nil {
			err = netlink.Validate(sent, []netlink.Message{m})
		}
		if errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("%w (CONFIG_INET_DIAG, CONFIG_INET_TCP_DIAG): %w", ErrUnsupported, err)
		}
		if err != nil {
			return edge(err)
		}
		interrupted = interrupted || m.Header.Flags&netlink.DumpInterrupted != 0
		s, err := decode(m.Data)
		if err != nil {
			return err
		}
		s.Netns = c.inode
		if err := fn(s); err != nil {
			return err // the iterator reads the rest and throws it away
		}
	}
	if interrupted {
		return ErrInterrupted
	}
	return nil
}

// edge turns the kernel's answers into this package's errors.
func edge(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESTALE):
		return fmt.Errorf("%w: %w", ErrGone, err)
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w (CONFIG_INET_DIAG_DESTROY): %w", ErrUnsupported, err)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w (CAP_NET_ADMIN): %w", ErrPermission, err)
	}
	return err
}
