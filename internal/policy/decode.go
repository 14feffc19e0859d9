// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// decoder walks the YAML tree and collects every mistake. It never expands an
// alias and never goes deeper than the keys it knows, so that its work is
// linear in the size of the file.
type decoder struct {
	file string
	errs Errors
}

func (d *decoder) errorf(at pos, format string, args ...any) {
	d.errs.List = append(d.errs.List, &Error{
		File: d.file, Line: at.line, Column: at.column, Message: fmt.Sprintf(format, args...),
	})
}

// pos is a place in the file; the zero value is nowhere.
type pos struct{ line, column int }

func at(n *yaml.Node) pos { return pos{n.Line, n.Column} }

// read returns nil where the file could not be understood at all.
func (d *decoder) read(b []byte) *file {
	root := d.document(b)
	if root == nil {
		return nil
	}
	f := &file{at: at(root), limits: builtinLimits()}
	if !d.mapping(root, "the policy", d.fileFields(f)) {
		return nil
	}
	return f
}

// document returns the root node of the only document in b, or nil.
func (d *decoder) document(b []byte) *yaml.Node {
	if len(b) > MaxSize {
		d.errorf(pos{}, "file has %d bytes, more than %d: split the peers or use larger CIDRs", len(b), MaxSize)
		return nil
	}
	if !d.text(b) {
		return nil
	}
	loader, err := yaml.NewLoader(bytes.NewReader(b))
	if err != nil {
		d.syntax(b, err)
		return nil
	}
	var doc, second yaml.Node
	switch err := loader.Load(&doc); {
	case errors.Is(err, io.EOF):
		d.errorf(pos{1, 1}, "file is empty: start with version: 1")
		return nil
	case err != nil:
		d.syntax(b, err)
		return nil
	}
	switch err := loader.Load(&second); {
	case err == nil:
		d.errorf(at(&second), "a second YAML document starts here: keep one policy in one document")
	case !errors.Is(err, io.EOF):
		d.syntax(b, err)
	}
	if len(doc.Content) != 1 || doc.Content[0].Tag == "!!null" {
		d.errorf(pos{1, 1}, "file is empty: start with version: 1")
		return nil
	}
	return doc.Content[0]
}

// text finds what the YAML reader refuses without saying where.
func (d *decoder) text(b []byte) bool {
	where := pos{1, 1}
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			d.errorf(where, "byte 0x%02x is not UTF-8: save the file as UTF-8", b[i])
			return false
		case !printable(r) && (r != 0xfeff || i > 0):
			d.errorf(where, "character U+%04X is not allowed in YAML: remove it", r)
			return false
		}
		i += n
		where.column++
		if r == '\n' {
			where = pos{where.line + 1, 1}
		}
	}
	return true
}

// printable is YAML 1.2's c-printable.
func printable(r rune) bool {
	switch {
	case r == '\t', r == '\n', r == '\r', r == 0x85:
		return true
	case r < 0x20, r >= 0x7f && r < 0xa0, r == 0xfeff, r == 0xfffe, r == 0xffff:
		return false
	}
	return true
}

// syntax records an error of the YAML library, which stops at its first.
func (d *decoder) syntax(b []byte, err error) {
	var one *yaml.LoadError
	if !errors.As(err, &one) {
		d.errorf(pos{1, 1}, "not YAML: %v", err)
		return
	}
	where := pos{max(one.Mark.Line, 1), max(one.Mark.Column, 1)}
	message := one.Message
	if one.ContextMsg != "" {
		message = one.ContextMsg + ", " + message
	}
	if indentedByTab(b, where.line) {
		message += ": indent with spaces, not with a tab"
	}
	d.errorf(where, "not YAML: %s", message)
}

// indentedByTab looks at the white space that a line begins with.
func indentedByTab(b []byte, line int) bool {
	for range line - 1 {
		_, b, _ = bytes.Cut(b, []byte("\n"))
	}
	rest := bytes.TrimLeft(b, " \t")
	return bytes.ContainsRune(b[:len(b)-len(rest)], '\t')
}

// own refuses aliases, anchors, tags and nothing at all. It reports whether the
// node can be read all the same.
func (d *decoder) own(n *yaml.Node, what string) bool {
	if n.Anchor != "" {
		d.errorf(at(n), "%s has the anchor &%s: remove it, a policy has no aliases", what, clip(n.Anchor))
	}
	switch {
	case n.Kind == yaml.AliasNode:
		d.errorf(at(n), "%s is the alias *%s: write the value itself, a policy has no aliases", what, clip(n.Value))
	case n.Style&yaml.TaggedStyle != 0:
		d.errorf(at(n), "%s has the tag %s: remove it", what, clip(n.Tag))
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
		d.errorf(at(n), "%s is empty: give a value or remove it", what)
	default:
		return true
	}
	return false
}

// scalar returns the text of a single value.
func (d *decoder) scalar(n *yaml.Node, what string) (string, bool) {
	if !d.own(n, what) {
		return "", false
	}
	if n.Kind != yaml.ScalarNode {
		d.errorf(at(n), "%s is a %s: write one value", what, kindName(n))
		return "", false
	}
	return n.Value, true
}

// quoted reports whether a value is text whatever it looks like: in quotes, or a block.
func quoted(n *yaml.Node) bool {
	const styles = yaml.DoubleQuotedStyle | yaml.SingleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	return n.Kind == yaml.ScalarNode && n.Style&styles != 0
}

// list returns the elements of a sequence.
func (d *decoder) list(n *yaml.Node, what string) ([]*yaml.Node, bool) {
	if !d.own(n, what) {
		return nil, false
	}
	switch n.Kind {
	case yaml.SequenceNode:
		return n.Content, true
	case yaml.ScalarNode:
		d.errorf(at(n), "%s is a single value: %s", what, listOf(n, what))
	default:
		d.errorf(at(n), "%s is a %s: write a list", what, kindName(n))
	}
	return nil, false
}

// listOf says which list a single value was meant to be.
func listOf(n *yaml.Node, what string) string {
	value := strings.TrimSpace(n.Value)
	switch {
	case what == "peers":
		return "write a list of mappings with name and cidrs"
	case quoted(n) && (strings.HasPrefix(value, "[") || strings.HasPrefix(value, "-")):
		return "it is text, write it as the list itself, without quotes"
	case len(value) > maxShown || strings.ContainsAny(value, "[]{}\"'#"):
		return "write a list"
	}
	elements := strings.FieldsFunc(value, func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
	if len(elements) == 0 {
		return "write a list"
	}
	for i, one := range elements {
		if strings.Contains(one, ":") { // which ends a key of a mapping
			elements[i] = strconv.Quote(one)
		}
	}
	return "write the list [" + strings.Join(elements, ", ") + "]"
}

func kindName(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "mapping"
	case yaml.SequenceNode:
		return "list"
	}
	return "single value"
}
