// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/hex"
	"fmt"
	"net/url"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// text reads a single value; problem says what is wrong with it, "" nothing.
func text(d *decoder, s *setting[string], name string, problem func(string) string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		s.at, s.bad = at(n), true
		value, ok := d.scalar(n, name)
		if !ok {
			return
		}
		if p := problem(value); p != "" {
			d.errorf(at(n), "%s %s", name, p)
			return
		}
		s.value, s.bad = value, false
	}
}

// badPath: the path goes into the request line as it is.
func badPath(path string) string {
	if !strings.HasPrefix(path, "/") {
		return fmt.Sprintf("%s does not begin with /: write one such as /healthz", quote(path))
	}
	if len(path) > maxPath {
		return fmt.Sprintf("has %d bytes, more than %d: choose a shorter one", len(path), maxPath)
	}
	for _, r := range path {
		if r <= ' ' || r > '~' || r == '#' {
			return fmt.Sprintf("%s has the character %q: write %s", quote(path), r, percent(r))
		}
	}
	if _, err := url.ParseRequestURI(path); err != nil {
		return fmt.Sprintf("%s has a %% without two hexadecimal digits: write %%25 for the character itself", quote(path))
	}
	return ""
}

// percent encodes every byte of a character.
func percent(r rune) string {
	var b strings.Builder
	for _, c := range []byte(string(r)) {
		fmt.Fprintf(&b, "%%%02X", c)
	}
	return b.String()
}

func badService(service string) string {
	if len(service) > maxService {
		return fmt.Sprintf("has %d bytes, more than %d: choose a shorter one", len(service), maxService)
	}
	for _, r := range service {
		if r <= ' ' || r > '~' {
			return fmt.Sprintf("%s has the character %q: write a name such as buffer.v1.Buffer", quote(service), r)
		}
	}
	return ""
}

// data reads what is sent as text. It is ASCII alone, so that each character
// is the byte that it says: a "\xff" of YAML is a character of two bytes.
func (d *decoder) data(n *yaml.Node, s *setting[[]byte]) {
	s.at, s.bad = at(n), true
	value, ok := d.scalar(n, "data")
	if !ok {
		return
	}
	if strings.Contains(value, `\`) && n.Style&yaml.DoubleQuotedStyle == 0 {
		d.errorf(at(n), `data has a \ that stands for itself, escapes need double quotes: write "PING\r\n", or "\\" for a \ to send`)
		return
	}
	for _, r := range value {
		if r >= utf8.RuneSelf {
			d.errorf(at(n), "data has the character %q, which is no single byte: write hex instead", r)
			return
		}
	}
	d.fits(n, s, "data", []byte(value))
}

// hex reads what is sent as hexadecimal digits; spaces may stand between them.
func (d *decoder) hex(n *yaml.Node, s *setting[[]byte]) {
	s.at, s.bad = at(n), true
	value, ok := d.scalar(n, "hex")
	if !ok {
		return
	}
	b, err := hex.DecodeString(strings.ReplaceAll(value, " ", ""))
	if err != nil {
		d.errorf(at(n), `hex %s is no row of bytes: write two hexadecimal digits for each, such as "50 49 4e 47 0d 0a"`, quote(value))
		return
	}
	d.fits(n, s, "hex", b)
}

// fits keeps what is sent where its size is right.
func (d *decoder) fits(n *yaml.Node, s *setting[[]byte], name string, b []byte) {
	switch {
	case len(b) == 0:
		d.errorf(at(n), "%s is empty: give at least one byte that the application answers", name)
	case len(b) > maxSend:
		d.errorf(at(n), "%s has %d bytes, more than %d: choose a shorter question", name, len(b), maxSend)
	default:
		s.value, s.bad = b, false
	}
}
