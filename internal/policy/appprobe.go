// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// Limits of an application probe.
const (
	minAppTimeout = 100 * time.Millisecond
	maxAppTimeout = time.Minute
	maxPath       = 1024 // bytes
	maxService    = 255  // bytes
	maxSend       = 4096 // bytes
)

// AppProbeOf returns the question that connections of a direction may cost,
// nil where there is none. The peer of an inbound connection is a client, and
// its port is nobody's service: it is asked only where the entry speaks of
// inbound connections alone and names the port.
func (p *Peer) AppProbeOf(direction conn.Direction) *AppProbe {
	if direction == conn.Inbound && p.Directions.Has(conn.Outbound) {
		return nil
	}
	return p.AppProbe
}

// appProbe is an application probe before it is checked. Of the kinds at most
// one stays, so they may share the port.
type appProbe struct {
	itself           mark
	http, grpc, send mark
	port             setting[int]
	path, service    setting[string]
	data, hex        setting[[]byte]
	timeout          setting[time.Duration]
	closeHung        setting[bool]
}

// builtinProbe has the values where app_probe gives none.
func builtinProbe() appProbe {
	return appProbe{
		path:      setting[string]{value: "/"},
		timeout:   setting[time.Duration]{value: 10 * time.Second},
		closeHung: setting[bool]{value: true},
	}
}

// appProbeField is the key app_probe of a peer.
func (d *decoder) appProbeField(a *appProbe) field {
	b := builtinProbe()
	port := func(kind AppKind) field {
		return field{name: "port", def: "the connection's", want: "1 to 65535",
			read: number(d, &a.port, string(kind)+" port", 1, 65535)}
	}
	http := []field{
		port(AppHTTP),
		{name: "path", def: b.path.value, want: "begins with /, at most 1024 bytes",
			read: text(d, &a.path, "http path", badPath)},
	}
	grpc := []field{
		port(AppGRPC),
		{name: "service", def: "the server", want: "at most 255 bytes",
			read: text(d, &a.service, "grpc service", badService)},
	}
	send := []field{
		port(AppSend),
		{name: "data", def: "none", want: "1 to 4096 bytes", read: func(n *yaml.Node) { d.data(n, &a.data) }},
		{name: "hex", def: "none", want: "1 to 4096 bytes", read: func(n *yaml.Node) { d.hex(n, &a.hex) }},
	}
	return field{name: "app_probe", mark: &a.itself, sub: []field{
		{name: string(AppHTTP), mark: &a.http, sub: http},
		{name: string(AppGRPC), mark: &a.grpc, sub: grpc},
		{name: string(AppSend), mark: &a.send, sub: send},
		{name: "timeout", def: short(b.timeout.value), want: "100ms to 1m",
			read: duration(d, &a.timeout, "app_probe timeout", minAppTimeout, maxAppTimeout, time.Millisecond)},
		choose(d, &a.closeHung, "on_hung", b.closeHung.value, choice[bool]{"close", true}, choice[bool]{"none", false}),
	}}
}

// kinds are those given, in the order of the documentation.
func (a *appProbe) kinds() []AppKind {
	var list []AppKind
	for _, k := range []struct {
		kind AppKind
		mark mark
	}{{AppHTTP, a.http}, {AppGRPC, a.grpc}, {AppSend, a.send}} {
		if k.mark.given() {
			list = append(list, k.kind)
		}
	}
	return list
}

// askable refuses an application probe that asks nothing, too much or nobody.
func (d *decoder) askable(a *appProbe, directions setting[Directions]) {
	if !a.itself.given() || a.itself.bad {
		return
	}
	inbound := !directions.bad && !directions.value.Has(conn.Outbound)
	switch kinds := a.kinds(); len(kinds) {
	case 0:
		example := "http: {path: /healthz}"
		if inbound {
			example = "http: {port: 7101, path: /healthz}"
		}
		d.errorf(a.itself.at, "app_probe asks nothing: add http, grpc or send, such as %s", example)
	case 1:
		d.sends(a)
	default:
		words := make([]string, len(kinds))
		for i, k := range kinds {
			words[i] = string(k)
		}
		d.errorf(a.itself.at, "app_probe has %s: keep one of them", strings.Join(words, " and "))
	}
	if inbound && len(a.kinds()) > 0 && !a.port.given() {
		d.errorf(a.itself.at, "app_probe has no port, and the peer of an inbound connection is a client, whose own port answers nobody: "+
			"add the port of a service at the peer, or remove app_probe")
	}
}

// sends refuses a send without exactly one thing to send.
func (d *decoder) sends(a *appProbe) {
	switch {
	case !a.send.given() || a.send.bad:
	case a.data.given() && a.hex.given():
		d.errorf(a.send.at, "send has data and hex: keep one of them")
	case !a.data.given() && !a.hex.given():
		d.errorf(a.send.at, `send has nothing to send: add data, such as data: "PING\r\n", or hex`)
	}
}

// probe gives the application probe its final form, nil where there is none.
func (a *appProbe) probe() *AppProbe {
	kinds := a.kinds()
	if len(kinds) != 1 {
		return nil
	}
	p := &AppProbe{
		Kind: kinds[0], Port: uint16(a.port.value),
		Timeout: a.timeout.value, CloseHung: a.closeHung.value,
	}
	switch p.Kind {
	case AppHTTP:
		p.Path = a.path.value
	case AppGRPC:
		p.Service = a.service.value
	case AppSend:
		p.Send = append(a.data.value, a.hex.value...) // one of them is empty
	}
	return p
}
