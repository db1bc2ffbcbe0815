package wire

// Messages is how many kinds of call there are, for tests outside of the package.
const Messages = len(calls)

// Dispatch makes the call with number op and a request's parameters on d or a, as a server does. name is for messages;
// ok is false where the parameters were not understood.
func Dispatch(d Driver, a Management, c *Call, op int, parameters []byte) (name string, r CUresult, ok bool) {
	m := &calls[op]
	in, out := &decoder{b: parameters, memory: c.memory}, &encoder{memory: c.memory}
	if m.manage != nil {
		r = m.manage(a, in, out)
	} else {
		r = m.drive(d, c, in, out)
	}
	return m.name, r, !in.bad
}
