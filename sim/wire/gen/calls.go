package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/lgpu/lgpu/tenant/abi"
)

// how a parameter travels.
type how int

const (
	value     how = iota // a number or a structure by value, in
	pointee              // what a pointer points at, in
	text                 // a C string, in
	address              // the pointer itself, in
	array                // elements, in; the count parameter is their length
	optArray             // the same, or NULL with a count that stands
	count                // an array's length: travels with the array
	result               // what a pointer points at, out
	optResult            // the same; the pointer may be NULL
	results              // elements, out; the count parameter is the room for them
	both                 // what a pointer points at, in and out
	dropped              // not sent
)

// param is one parameter of a call.
type param struct {
	name     string // C name
	decl     string // C type as declared
	elem     string // C type of the value, or of what is pointed at
	how      how
	count    string // name of the count parameter of an array
	goName   string
	goType   string // Go type of elem
	isStruct bool
}

// call is one message.
type call struct {
	method string
	params []param
	always bool // results come back even with an error
	nvml   bool // answered by the Management interface
}

// export is one symbol of libcuda.so.1.
type export struct {
	sym     *abi.Symbol
	kind    string // call, hand, local, alias; "" for one that answers CUDA_ERROR_NOT_SUPPORTED
	own     bool   // a symbol of lgpu's, which no driver has; its kind is call
	needCtx bool
	call    *call  // kind call
	target  string // kind alias
	of      string // the symbol that a _ptsz or _ptds form stands for
}

// plan is everything that is generated.
type plan struct {
	calls   []*call
	exports []*export
	types   *typeTable
}

func readCalls(path string, types *typeTable) (*plan, error) {
	syms, err := abi.CUDA()
	if err != nil {
		return nil, err
	}
	bySym := map[string]*export{}
	p := &plan{types: types}
	for i := range syms {
		e := &export{sym: &syms[i]}
		p.exports = append(p.exports, e)
		bySym[syms[i].Name] = e
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for i, line := range strings.Split(string(data), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		if err := p.line(line, bySym); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, i+1, err)
		}
	}
	for _, e := range p.exports {
		for _, suffix := range []string{"_ptsz", "_ptds"} {
			base, ok := strings.CutSuffix(e.sym.Name, suffix)
			if of := bySym[base]; ok && of != nil && of.kind != "" {
				e.kind, e.needCtx, e.call, e.target, e.of = of.kind, of.needCtx, of.call, of.target, base
			}
		}
	}
	return p, nil
}

func (p *plan) line(line string, bySym map[string]*export) error {
	kind, rest, _ := strings.Cut(line, " ")
	switch kind {
	case "rpc", "nvml":
		sym, options, err := parsePrototype(rest)
		if err != nil {
			return err
		}
		return p.addCall(sym.Name, sym.Params, options, kind == "nvml", nil)
	case "own":
		return p.addOwn(rest, bySym)
	}
	words := strings.Fields(rest)
	if len(words) == 0 || bySym[words[0]] == nil {
		return fmt.Errorf("no such symbol in %q", line)
	}
	e := bySym[words[0]]
	if e.kind != "" {
		return fmt.Errorf("%s is listed twice", words[0])
	}
	if !e.sym.Known() && kind != "local" {
		return fmt.Errorf("the signature of %s is not known", words[0])
	}
	e.kind = kind
	options := words[1:]
	switch kind {
	case "local":
	case "alias":
		e.target = words[1]
		if t := bySym[e.target]; t == nil || t.kind == "" || len(t.sym.Params) != len(e.sym.Params) && t.kind == "call" {
			return fmt.Errorf("%s: alias of %s, which is not listed before it", words[0], e.target)
		}
		e.needCtx = bySym[e.target].needCtx
		options = nil
	case "call", "hand":
		if kind == "call" {
			options = words[2:]
		}
		if len(options) > 0 && options[0] == "ctx" {
			e.needCtx, options = true, options[1:]
		}
		if kind == "call" {
			return p.addCall(words[1], e.sym.Params, options, false, e)
		}
	default:
		return fmt.Errorf("unknown kind %q", kind)
	}
	if len(options) > 0 {
		return fmt.Errorf("unknown option %q", options[0])
	}
	return nil
}

// parsePrototype reads "NAME(C PARAMETERS)" and the words behind it.
func parsePrototype(text string) (*abi.Symbol, []string, error) {
	name, rest, ok := strings.Cut(text, "(")
	params, words, ok2 := strings.Cut(rest, ")")
	if !ok || !ok2 {
		return nil, nil, fmt.Errorf("%s: no parameter list", name)
	}
	syms, err := abi.ParseCUDA(fmt.Sprintf("%s\t-\t-\t-\tpass\t%s", name, params))
	if err != nil {
		return nil, nil, err
	}
	return &syms[0], strings.Fields(words), nil
}

// addOwn adds a symbol that no driver has.
func (p *plan) addOwn(text string, bySym map[string]*export) error {
	sym, words, err := parsePrototype(text)
	if err != nil {
		return err
	}
	if len(words) == 0 {
		return fmt.Errorf("%s: no method", sym.Name)
	}
	if bySym[sym.Name] != nil {
		return fmt.Errorf("%s is a symbol of the driver's, or listed twice", sym.Name)
	}
	e := &export{sym: sym, kind: "call", own: true}
	bySym[sym.Name] = e
	p.exports = append(p.exports, e)
	options := words[1:]
	if len(options) > 0 && options[0] == "ctx" {
		e.needCtx, options = true, options[1:]
	}
	return p.addCall(words[0], sym.Params, options, false, e)
}

// goName is the Go name of a C parameter.
func goName(c string) string {
	if k, ok := goKeywords[c]; ok {
		return k
	}
	return strings.ToLower(c[:1]) + c[1:]
}

var goKeywords = map[string]string{
	"type": "typ", "map": "access", "func": "fn", "len": "length", "range": "rng", "string": "str", "c": "cc", "in": "in0", "out": "out0", "m": "mm",
}

func (p *plan) addCall(method string, params []abi.Param, options []string, nvml bool, e *export) error {
	c := &call{method: method, nvml: nvml}
	hows := map[string]string{}
	for _, o := range options {
		if o == "always" {
			c.always = true
			continue
		}
		name, h, ok := strings.Cut(o, "=")
		if !ok {
			return fmt.Errorf("%s: unknown option %q", method, o)
		}
		hows[name] = h
	}
	counts := map[string]bool{}
	for _, a := range params {
		h, given := hows[a.Name]
		delete(hows, a.Name)
		q, err := p.param(a, h, given)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", method, a.Name, err)
		}
		if q.how == array || q.how == optArray {
			counts[q.count] = true
		}
		c.params = append(c.params, q)
	}
	for name := range hows {
		return fmt.Errorf("%s has no parameter %s", method, name)
	}
	for i := range c.params {
		if counts[c.params[i].name] {
			c.params[i].how = count
			delete(counts, c.params[i].name)
		}
	}
	for name := range counts {
		return fmt.Errorf("%s has no count parameter %s", method, name)
	}
	for _, old := range p.calls {
		if old.method == method {
			return fmt.Errorf("%s is listed twice", method)
		}
	}
	p.calls = append(p.calls, c)
	if e != nil {
		e.call = c
	}
	return nil
}

// param says how a parameter travels, by its type and by its annotation h, if one is given.
func (p *plan) param(a abi.Param, h string, given bool) (param, error) {
	q := param{name: a.Name, decl: a.Type}
	q.goName = goName(a.Name)
	q.elem = strings.TrimSuffix(strings.TrimPrefix(a.Type, "const "), "*")
	pointer := strings.HasSuffix(a.Type, "*")
	kind, n, _ := strings.Cut(strings.TrimSuffix(h, "]"), "[")
	switch {
	case given && kind == "addr":
		q.how, q.goType = address, "HostAddr"
	case given && kind == "drop":
		q.how = dropped
	case !pointer:
		q.how = value
	case given && kind == "in":
		q.how, q.count = array, n
	case given && kind == "optin":
		q.how, q.count = optArray, n
	case given && kind == "out":
		q.how, q.count = results, n
	case given && kind == "inout":
		q.how = both
	case given && kind == "inptr":
		q.how = pointee
	case given && kind == "opt" && !strings.HasPrefix(a.Type, "const "):
		q.how = optResult
	case given:
		return q, fmt.Errorf("unknown annotation %q", h)
	case a.Type == "const char*":
		q.how, q.goType = text, "string"
	case strings.HasPrefix(a.Type, "const "):
		q.how = pointee
	default:
		q.how = result
	}
	if q.goType != "" || q.how == dropped {
		return q, nil
	}
	var err error
	q.goType, q.isStruct, err = p.types.goType(q.elem)
	return q, err
}
