// SPDX-License-Identifier: Apache-2.0

package labtest

import (
	"encoding/binary"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	nl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/netns"
)

// Redirect makes ns send the connections that it opens to a port, whoever the peer
// is, to its own port to, as meshes and captive proxies do. It ends with ns.
func Redirect(t testing.TB, ns *netns.NS, port, to uint16) {
	t.Helper()
	c, table := tableIn(t, ns, "redirect")
	chain := c.AddChain(&nftables.Chain{
		Name: "output", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest,
	})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(toPort(port),
		&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(to)},
		&expr.Redir{RegisterProtoMin: 1},
	)})
	flush(t, c)
}

// Translate makes ns send the connections that it opens to a port to another
// address of the same family, IPv4, as services do. It ends with ns.
func Translate(t testing.TB, ns *netns.NS, port uint16, to [4]byte) {
	t.Helper()
	c, table := tableIn(t, ns, "translate")
	chain := c.AddChain(&nftables.Chain{
		Name: "output", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest,
	})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(toPort(port),
		&expr.Immediate{Register: 1, Data: to[:]},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1},
	)})
	flush(t, c)
}

// Intercept makes what ns itself sends to a port, over IPv4, end at a listener of
// ns with IP_TRANSPARENT at the port to, which speaks with the peer's address: a
// transparent proxy. It ends with ns.
func Intercept(t testing.TB, ns *netns.NS, port, to uint16) {
	t.Helper()
	const mark, routes = 0x51, 151
	err := ns.Do(func() error {
		lo, err := nl.LinkByName("lo")
		if err != nil {
			return err
		}
		every := nl.NewIPNet(make([]byte, 4))
		every.Mask = make([]byte, 4)
		if err := nl.RouteAdd(&nl.Route{
			Dst: every, LinkIndex: lo.Attrs().Index, Table: routes, Type: unix.RTN_LOCAL, Scope: nl.SCOPE_HOST,
		}); err != nil {
			return err
		}
		r := nl.NewRule()
		r.Table, r.Mark, r.Family = routes, mark, unix.AF_INET
		return nl.RuleAdd(r)
	})
	if err != nil {
		t.Fatal(err)
	}
	c, table := tableIn(t, ns, "intercept")
	out := c.AddChain(&nftables.Chain{
		Name: "output", Table: table, Type: nftables.ChainTypeRoute,
		Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityMangle,
	})
	value := binary.NativeEndian.AppendUint32(nil, mark)
	c.AddRule(&nftables.Rule{Table: table, Chain: out, Exprs: append(toPort(port),
		&expr.Immediate{Register: 1, Data: value},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1},
	)})
	in := c.AddChain(&nftables.Chain{
		Name: "prerouting", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityMangle,
	})
	c.AddRule(&nftables.Rule{Table: table, Chain: in, Exprs: append(toPort(port),
		&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(to)},
		&expr.TProxy{Family: unix.NFPROTO_IPV4, TableFamily: unix.NFPROTO_INET, RegPort: 1},
	)})
	flush(t, c)
}

// BlockRoot makes ns drop, in its output hook, what processes of root send, until
// the returned function is called.
func BlockRoot(t testing.TB, ns *netns.NS) (lift func()) {
	t.Helper()
	c, table := tableIn(t, ns, "owner")
	chain := c.AddChain(&nftables.Chain{
		Name: "output", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter,
	})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeySKUID, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0, 0, 0, 0}},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}})
	flush(t, c)
	return func() {
		t.Helper()
		c.DelTable(table)
		flush(t, c)
	}
}

// tableIn makes a table of nftables for both families.
func tableIn(t testing.TB, ns *netns.NS, name string) (*nftables.Conn, *nftables.Table) {
	t.Helper()
	c, err := nftables.New(nftables.WithNetNSFd(ns.FD()))
	if err != nil {
		t.Fatal(err)
	}
	return c, c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: name})
}

func flush(t testing.TB, c *nftables.Conn) {
	t.Helper()
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
}

// toPort matches IPv4 segments of TCP to a port.
func toPort(port uint16) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.NFPROTO_IPV4}},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
	}
}
