// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// linkTimeout bounds the wait for a new link; it takes milliseconds, and longer where the
// kernel's workers are late.
const linkTimeout = 30 * time.Second

// hostDevice is the name of every host's only link.
const hostDevice = "eth0"

// network is one link between the router, host 1, and a host, host 2:
// 10.91.n.0/24 and fd91:0:0:n::/64.
type network struct{ n byte }

func (n network) addr4(host byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 91, n.n, host}) }

func (n network) addr6(host byte) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x91, 7: n.n, 15: host})
}

// prefix returns the network's prefix of a's family.
func (n network) prefix(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(n.addr4(0), 24)
	}
	return netip.PrefixFrom(n.addr6(0), 64)
}

// device is the router's end of the link.
func (n network) device() string { return "net" + strconv.Itoa(int(n.n)) }

// join links host to router and gives it its addresses and default routes.
func (n network) join(router, host *netns.NS, extra []netip.Addr) error {
	addrs := usable(n.addr4(2), n.addr6(2))
	for _, a := range extra {
		if !n.prefix(a).Contains(a) {
			return fmt.Errorf("add address %s: outside %s", a, n.prefix(a))
		}
		addrs = append(addrs, a)
	}
	if err := prepare(host); err != nil {
		return err
	}
	r, err := open(router)
	if err != nil {
		return err
	}
	defer r.Close()
	h, err := open(host)
	if err != nil {
		return err
	}
	defer h.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = n.device()
	veth := netlink.NewVeth(attrs)
	veth.PeerName = hostDevice
	veth.PeerNamespace = netlink.NsFd(host.FD())
	if err := r.LinkAdd(veth); err != nil {
		return fmt.Errorf("add link %s: %w", n.device(), err)
	}
	if err := n.configure(r, n.device(), usable(n.addr4(1), n.addr6(1))...); err != nil {
		return err
	}
	if err := n.configure(h, hostDevice, addrs...); err != nil {
		return err
	}
	for handle, device := range map[*netlink.Handle]string{r: n.device(), h: hostDevice} {
		if err := await(handle, device); err != nil {
			return err
		}
	}
	return n.route(h)
}

// configure gives a device its addresses and brings it up.
func (n network) configure(h *netlink.Handle, device string, addrs ...netip.Addr) error {
	link, err := h.LinkByName(device)
	if err != nil {
		return fmt.Errorf("find link %s: %w", device, err)
	}
	for _, a := range addrs {
		ip := &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(n.prefix(a).Bits(), a.BitLen())}
		if err := h.AddrAdd(link, &netlink.Addr{IPNet: ip}); err != nil {
			return fmt.Errorf("add address %s to %s: %w", a, device, err)
		}
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring up %s: %w", device, err)
	}
	return nil
}

// route sends everything a host has to say to the router.
func (n network) route(h *netlink.Handle) error {
	link, err := h.LinkByName(hostDevice)
	if err != nil {
		return fmt.Errorf("find link %s: %w", hostDevice, err)
	}
	for _, via := range usable(n.addr4(1), n.addr6(1)) {
		all := &net.IPNet{IP: make(net.IP, via.BitLen()/8), Mask: net.CIDRMask(0, via.BitLen())}
		r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: all, Gw: via.AsSlice()}
		if err := h.RouteAdd(r); err != nil {
			return fmt.Errorf("add default route by %s: %w", via, err)
		}
	}
	return nil
}

// await waits until the device carries its first packet.
func await(h *netlink.Handle, device string) error {
	pause := time.Millisecond
	for deadline := time.Now().Add(linkTimeout); ; time.Sleep(pause) {
		pause = min(2*pause, 20*time.Millisecond)
		ok, err := ready(h, device)
		if err != nil {
			return fmt.Errorf("wait for %s: %w", device, err)
		}
		if ok {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("wait for %s: %w", device, os.ErrDeadlineExceeded)
		}
	}
}

// ready reports whether the device has noticed its carrier, before which it
// drops what it is to send, and whether it has a link-local address and all its
// IPv6 addresses are in use: neighbours are asked from the one, and answered for
// the others, only then.
func ready(h *netlink.Handle, device string) (bool, error) {
	link, err := h.LinkByName(device)
	if err != nil || link.Attrs().OperState != netlink.OperUp {
		return false, err
	}
	if !IPv6() {
		return true, nil
	}
	addrs, err := h.AddrList(link, netlink.FAMILY_V6)
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		return false, nil // an address came or went meanwhile
	}
	if err != nil {
		return false, err
	}
	local := false
	for _, a := range addrs {
		if a.Flags&unix.IFA_F_TENTATIVE != 0 {
			return false, nil
		}
		local = local || a.IP.IsLinkLocalUnicast()
	}
	return local, nil
}

// open returns a route netlink handle inside ns.
func open(ns *netns.NS) (h *netlink.Handle, err error) {
	err = ns.Do(func() error {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open route netlink: %w", err)
	}
	return h, nil
}

// forward makes a router of ns.
func forward(ns *netns.NS) error {
	err := errors.Join(prepare(ns), sysctl(ns, "ipv4/ip_forward", "1"))
	if IPv6() {
		err = errors.Join(err, sysctl(ns, "ipv6/conf/all/forwarding", "1"))
	}
	return err
}

// prepare makes the devices that ns will have use IPv6, with a link-local
// address, and every address at once, without asking whether another has it.
func prepare(ns *netns.NS) error {
	if !IPv6() {
		return nil
	}
	return errors.Join(
		sysctl(ns, "ipv6/conf/default/disable_ipv6", "0"),
		sysctl(ns, "ipv6/conf/default/addr_gen_mode", "0"),
		sysctl(ns, "ipv6/conf/all/accept_dad", "0"), // the larger of the two holds
		sysctl(ns, "ipv6/conf/default/accept_dad", "0"),
	)
}

// sysctl sets one below net/ inside ns: the kernel shows each thread the
// settings of its own namespace there.
func sysctl(ns *netns.NS, name, value string) error {
	return ns.Do(func() error {
		f, err := os.OpenFile("/proc/sys/net/"+name, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteString(value)
		return errors.Join(err, f.Close())
	})
}
