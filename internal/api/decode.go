// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

const (
	exampleReport = `{"peer": "10.20.1.2:7100", "local": "10.1.1.1:40122", "elapsed_ms": 2000}`
	fieldNames    = "peer, local, cookie and elapsed_ms"
	maxElapsedMS  = int64(time.Hour / time.Millisecond)
)

// body is a report as it was sent. A field that was not given is zero.
type body struct {
	local, peer netip.AddrPort // as conn.ID has them: unmapped, no zone
	cookie      uint64
	elapsed     time.Duration
}

// parseReport decodes a report. Its errors are sentences for whoever sent the
// report.
func parseReport(data []byte) (body, error) {
	var b body
	err := parseObject(data, exampleReport, b.set)
	if err == nil {
		err = b.check()
	}
	if err != nil {
		return body{}, err
	}
	return b, nil
}

// parseObject decodes a JSON object and calls set for each of its fields. It is
// stricter than encoding/json, which takes PEER for peer, the last of two values
// and null for none: a question that is taken for another one would concern the
// wrong socket.
func parseObject(data []byte, example string, set func(name string, value json.Token) error) error {
	if len(bytes.TrimSpace(data)) == 0 {
		return fmt.Errorf("the body is empty, want a JSON object such as %s", example)
	}
	var whole json.RawMessage
	if err := json.Unmarshal(data, &whole); err != nil {
		return syntaxError(err)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	// The syntax has been checked: Token cannot fail before the end.
	if tok, _ := dec.Token(); tok != json.Delim('{') {
		return fmt.Errorf("the body is %s, want a JSON object such as %s", kind(tok), example)
	}
	seen := make(map[string]bool)
	for dec.More() {
		tok, _ := dec.Token()
		name, _ := tok.(string)
		if seen[name] {
			return fmt.Errorf("field %s is given twice", quote(name))
		}
		seen[name] = true
		value, _ := dec.Token()
		if err := set(name, value); err != nil {
			return err
		}
	}
	return nil
}

func syntaxError(err error) error {
	var se *json.SyntaxError
	if errors.As(err, &se) {
		return fmt.Errorf("the body is not valid JSON at byte %d: %w", se.Offset, se)
	}
	return fmt.Errorf("the body is not valid JSON: %w", err)
}

// set stores one field.
func (b *body) set(name string, value json.Token) (err error) {
	switch name {
	case "peer":
		b.peer, err = addrPort(`field "peer"`, value)
	case "local":
		b.local, err = addrPort(`field "local"`, value)
	case "cookie":
		b.cookie, err = cookie(`field "cookie"`, value)
	case "elapsed_ms":
		b.elapsed, err = elapsed(value)
	default:
		err = fmt.Errorf("unknown field %s: the fields are %s", quote(name), fieldNames)
	}
	return err
}

// check looks at the fields together.
func (b *body) check() error {
	switch {
	case b.local.IsValid() && b.peer.IsValid() && b.local.Addr().Is4() != b.peer.Addr().Is4():
		return fmt.Errorf(`fields "local" and "peer" are of different address families: %s and %s`, b.local, b.peer)
	case b.local.IsValid() || b.cookie != 0 || b.peer.IsValid():
		return nil
	}
	return errors.New(`the report names no socket: give "local" (getsockname), "cookie" (SO_COOKIE) or, for all sockets to it, "peer" (getpeername)`)
}

// addrPort reads an address and port; what names where it stands.
func addrPort(what string, value json.Token) (netip.AddrPort, error) {
	const want = `want an IP address and a port such as "10.20.1.2:7100" or "[fd00:20::2]:7100"`
	s, ok := value.(string)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("%s is %s, %s", what, kind(value), want)
	}
	ap, err := netip.ParseAddrPort(s)
	switch {
	case err != nil && !wrongPort(s):
		return netip.AddrPort{}, fmt.Errorf("%s is %s, %s; names are not resolved", what, quote(s), want)
	case err != nil, ap.Port() == 0:
		return netip.AddrPort{}, fmt.Errorf("%s is %s: a port is 1 to 65535", what, quote(s))
	case ap.Addr().Unmap().IsUnspecified():
		return netip.AddrPort{}, fmt.Errorf("%s is %s: a connection has no wildcard address", what, quote(s))
	}
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port()), nil
}

// wrongPort reports whether a number that is no port is all that is wrong.
func wrongPort(s string) bool {
	i := strings.LastIndexByte(s, ':')
	if i < 0 || i == len(s)-1 || strings.Trim(s[i+1:], "0123456789") != "" {
		return false
	}
	_, err := netip.ParseAddrPort(s[:i] + ":1")
	return err == nil
}

func cookie(what string, value json.Token) (uint64, error) {
	n, ok := value.(json.Number)
	if ok {
		if c, err := strconv.ParseUint(n.String(), 10, 64); err == nil && c != 0 {
			return c, nil
		}
	}
	return 0, fmt.Errorf("%s is %s, want a whole number from 1 to 18446744073709551615: the socket's SO_COOKIE", what, kind(value))
}

func elapsed(value json.Token) (time.Duration, error) {
	n, ok := value.(json.Number)
	if ok {
		if ms, err := strconv.ParseInt(n.String(), 10, 64); err == nil && ms >= 0 && ms <= maxElapsedMS {
			return time.Duration(ms) * time.Millisecond, nil
		}
	}
	return 0, fmt.Errorf(`field "elapsed_ms" is %s, want a whole number from 0 to %d (an hour): the milliseconds since the request was written`,
		kind(value), maxElapsedMS)
}

// kind says what a value is: a number by its digits, others by their type.
func kind(value json.Token) string {
	switch v := value.(type) {
	case json.Number:
		return shorten(v.String())
	case string:
		return "a string"
	case bool:
		return strconv.FormatBool(v)
	case nil:
		return "null"
	}
	if value == json.Delim('{') {
		return "an object"
	}
	return "an array"
}

// quote quotes what a caller sent, shortened.
func quote(s string) string { return strconv.Quote(shorten(s)) }

func shorten(s string) string {
	const enough = 64
	if len(s) > enough {
		return s[:enough] + "..."
	}
	return s
}
