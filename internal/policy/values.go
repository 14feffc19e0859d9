// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// duration reads a Go duration that is a whole number of units from low to
// high.
func duration(d *decoder, s *setting[time.Duration], name string, low, high, unit time.Duration) func(*yaml.Node) {
	return func(n *yaml.Node) {
		s.at, s.bad = at(n), true
		text, ok := d.scalar(n, name)
		if !ok {
			return
		}
		v, problem := parseDuration(text, low, high, unit)
		if problem != "" {
			d.errorf(at(n), "%s %s", name, problem)
			return
		}
		s.value, s.bad = v, false
	}
}

// durationOrOff reads a duration, or off, which is 0.
func durationOrOff(d *decoder, s *setting[time.Duration], name string, low, high, unit time.Duration) func(*yaml.Node) {
	return func(n *yaml.Node) {
		s.at, s.bad = at(n), true
		text, ok := d.scalar(n, name)
		if !ok {
			return
		}
		if text == "off" {
			s.value, s.bad = 0, false
			return
		}
		v, problem := parseDuration(text, low, high, unit)
		if problem != "" {
			d.errorf(at(n), "%s %s, or write off", name, problem)
			return
		}
		s.value, s.bad = v, false
	}
}

func parseDuration(text string, low, high, unit time.Duration) (time.Duration, string) {
	if n, err := strconv.ParseUint(text, 10, 64); err == nil && text != "0" {
		return 0, fmt.Sprintf("%s has no unit: write %s", clip(text), withUnit(n, low, high, unit))
	}
	v, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return 0, fmt.Sprintf("%s is no duration: write one such as 15s or 1500ms", quote(text))
	case v < low:
		return 0, fmt.Sprintf("%s is below %s: raise it to %[2]s or more", clip(text), short(low))
	case v > high:
		return 0, fmt.Sprintf("%s is above %s: lower it to %[2]s or less", clip(text), limit(high))
	case v%unit != 0:
		down := v.Truncate(unit)
		return 0, fmt.Sprintf("%s is no whole number of %s: write %s or %s", clip(text), unitName(unit), short(down), short(down+unit))
	}
	return v, ""
}

// withUnit is what a number without a unit may mean: those of seconds and milliseconds
// that the key takes. A thousand and more may well be milliseconds, as the kernel's own
// options have them, also where so many seconds would do.
func withUnit(n uint64, low, high, unit time.Duration) string {
	fits := func(of time.Duration) bool {
		return n <= uint64(high/of) && time.Duration(n)*of >= low && time.Duration(n)*of%unit == 0
	}
	seconds, milliseconds := fits(time.Second), fits(time.Millisecond)
	switch {
	case seconds && milliseconds && n >= 1000:
		return fmt.Sprintf("%dms (%s) or %[1]ds (%[3]s)", n, short(time.Duration(n)*time.Millisecond), short(time.Duration(n)*time.Second))
	case seconds:
		return fmt.Sprintf("%ds", n)
	case milliseconds:
		return fmt.Sprintf("%dms", n)
	}
	return fmt.Sprintf("one from %s to %s", short(low), limit(high))
}

func unitName(unit time.Duration) string {
	if unit == time.Second {
		return "seconds"
	}
	return "milliseconds"
}

// limit writes an upper limit as the documentation has it: in its own unit.
func limit(v time.Duration) string {
	switch v {
	case maxKeepalive:
		return fmt.Sprintf("%ds", v/time.Second)
	case maxUserTimeout:
		return fmt.Sprintf("%dms", v/time.Millisecond)
	}
	return short(v)
}

// number reads a decimal number from low to high.
func number(d *decoder, s *setting[int], name string, low, high int) func(*yaml.Node) {
	return func(n *yaml.Node) {
		s.at, s.bad = at(n), true
		text, ok := d.scalar(n, name)
		if !ok {
			return
		}
		v, err := strconv.Atoi(text)
		bare := ""
		if quoted(n) {
			bare = ", without quotes"
		}
		switch {
		case err != nil || strconv.Itoa(v) != text:
			d.errorf(at(n), "%s %s is no plain number: write one from %d to %d%s", name, quote(text), low, high, bare)
		case v < low:
			d.errorf(at(n), "%s %d is below %d: raise it to %[3]d or more%s", name, v, low, bare)
		case v > high:
			d.errorf(at(n), "%s %d is above %d: lower it to %[3]d or less%s", name, v, high, bare)
		case n.Tag != "!!int":
			d.errorf(at(n), "%s %s is text: write %d%s", name, quote(text), v, bare)
		default:
			s.value, s.bad = v, false
		}
	}
}

func (d *decoder) name(n *yaml.Node, e *entry) {
	e.nameAt = at(n)
	text, ok := d.scalar(n, "name")
	if !ok {
		return
	}
	if good := label(text); good != text {
		d.errorf(at(n), "name %s is no label (1 to 63 of a-z, 0-9, _, ., -): write %s", quote(text), good)
		return
	}
	e.name = text
}

// label returns the nearest fit name: text itself where it is one.
func label(text string) string {
	good := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '_', r == '.', r == '-':
			return r
		}
		return '_'
	}, strings.ToLower(text))
	if good == "" {
		return "peer"
	}
	return good[:min(len(good), 63)]
}

func (d *decoder) ports(n *yaml.Node, e *entry) {
	e.portsBad = true
	nodes, ok := d.list(n, "ports")
	if !ok {
		return
	}
	if len(nodes) == 0 {
		d.errorf(at(n), "ports is empty: give a port, or remove the key for all ports")
		return
	}
	e.portsBad = false
	for _, one := range nodes {
		text, ok := d.scalar(one, "port")
		if !ok {
			e.portsBad = true
			continue
		}
		r, problem := parsePorts(text)
		if problem != "" {
			d.errorf(at(one), "port %s", problem)
			e.portsBad = true
			continue
		}
		e.ports = append(e.ports, r)
	}
	e.ports = join(e.ports)
}

// join sorts ranges and makes one of those that overlap or touch.
func join(ports []PortRange) []PortRange {
	slices.SortFunc(ports, func(a, b PortRange) int { return cmp.Compare(a.Lo, b.Lo) })
	var joined []PortRange
	for _, r := range ports {
		if n := len(joined); n > 0 && int(r.Lo) <= int(joined[n-1].Hi)+1 {
			joined[n-1].Hi = max(joined[n-1].Hi, r.Hi)
			continue
		}
		joined = append(joined, r)
	}
	return joined
}

func parsePorts(text string) (PortRange, string) {
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		last = first
	}
	lo, okLo := digits(first)
	hi, okHi := digits(last)
	switch {
	case !okLo || !okHi:
		return PortRange{}, fmt.Sprintf("%s is no port: write one such as 7100, or a range such as 7100-7199", quote(text))
	case lo < 1:
		return PortRange{}, fmt.Sprintf("%s is below 1: write ports from 1 to 65535, or remove the key for all ports", text)
	case hi > 65535 || lo > 65535:
		return PortRange{}, fmt.Sprintf("%s is above 65535: write ports from 1 to 65535", text)
	case lo > hi:
		return PortRange{}, fmt.Sprintf("%s is reversed: write %d-%d", text, hi, lo)
	}
	return PortRange{uint16(lo), uint16(hi)}, ""
}

// digits reads a decimal number without sign, spaces or leading zeros.
func digits(s string) (int, bool) {
	v, err := strconv.ParseUint(s, 10, 31)
	return int(v), err == nil && strconv.FormatUint(v, 10) == s
}

// short writes a duration without trailing zero units: 1m, 15s, 1.5s.
func short(v time.Duration) string {
	s := v.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// quote quotes a value of the file, shortened where it is long.
func quote(s string) string {
	if short := clip(s); short != s {
		return strconv.Quote(strings.TrimSuffix(short, "...")) + "..."
	}
	return strconv.Quote(s)
}

// maxShown is how many characters of a value a message shows.
const maxShown = 60

// clip shortens a long value.
func clip(s string) string {
	if r := []rune(s); len(r) > maxShown {
		return string(r[:maxShown]) + "..."
	}
	return s
}
