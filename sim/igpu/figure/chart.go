package figure

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// Chart is a chart of lines over the same values of x, or of bars where these are things that have no order.
type Chart struct {
	Title, X, Y string
	Bars        bool
	At          []string // what stands below each value of x
	Series      []Series
}

// Series is one line of a chart. A value that is not known is NaN.
type Series struct {
	Name   string
	Values []float64
}

// Colours that people with any colour vision can tell apart (Okabe and Ito).
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"}

// The chart's size and margins, in the units of the SVG.
const (
	width, height            = 720.0, 380.0
	left, right, top, bottom = 85.0, 20.0, 70.0, 50.0
)

// SVG draws the chart.
func (c Chart) SVG() string {
	var b strings.Builder
	most := c.most()
	x := func(i int) float64 {
		return left + (width-left-right)*(float64(i)+0.5)/float64(max(1, len(c.At)))
	}
	y := func(v float64) float64 { return height - bottom - (height-top-bottom)*v/most }
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" font-family="sans-serif" font-size="13">%s`+"\n", width, height, mark)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="white"/><text x="%g" y="22" font-size="16">%s</text>`+"\n", left, html.EscapeString(c.Title))
	for i := range 6 {
		v := most * float64(i) / 5
		fmt.Fprintf(&b, `<path d="M%g %.1fH%g" stroke="#ddd"/><text x="%g" y="%.1f" text-anchor="end">%s</text>`+"\n",
			left, y(v), width-right, left-6, y(v)+4, number(v))
	}
	for i, at := range c.At {
		fmt.Fprintf(&b, `<text x="%.1f" y="%g" text-anchor="middle">%s</text>`+"\n", x(i), height-bottom+18, html.EscapeString(at))
	}
	fmt.Fprintf(&b, `<text x="%g" y="%g" text-anchor="middle">%s</text>`+"\n", (left+width-right)/2, height-10, html.EscapeString(c.X))
	fmt.Fprintf(&b, `<text transform="translate(18 %g) rotate(-90)" text-anchor="middle">%s</text>`+"\n", (top+height-bottom)/2, html.EscapeString(c.Y))
	at, row := left, 34.0 // of the legend
	for n, s := range c.Series {
		long := 35 + 7.2*float64(len(s.Name))
		if at > left && at+long > width {
			at, row = left, row+17
		}
		colour := colours[n%len(colours)]
		if c.Bars {
			c.bars(&b, n, x, y)
		} else {
			s.line(&b, colour, x, y)
		}
		fmt.Fprintf(&b, `<rect x="%.1f" y="%g" width="12" height="12" fill="%s"/><text x="%.1f" y="%g">%s</text>`+"\n",
			at, row, colour, at+17, row+11, html.EscapeString(s.Name))
		at += long
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// line draws a series as a line with gaps where a value is not known.
func (s Series) line(b *strings.Builder, colour string, x func(int) float64, y func(float64) float64) {
	path, pen := "", "M"
	for i, v := range s.Values {
		if math.IsNaN(v) {
			pen = "M"
			continue
		}
		path += fmt.Sprintf("%s%.1f %.1f", pen, x(i), y(v))
		pen = "L"
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s"/>`+"\n", x(i), y(v), colour)
	}
	fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", path, colour)
}

// bars draws the nth series as bars, beside those of the others.
func (c Chart) bars(b *strings.Builder, n int, x func(int) float64, y func(float64) float64) {
	wide := 0.8 * (width - left - right) / float64(len(c.At)*len(c.Series))
	for i, v := range c.Series[n].Values {
		if !math.IsNaN(v) {
			fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n",
				x(i)+wide*(float64(n)-float64(len(c.Series))/2), y(v), wide, y(0)-y(v), colours[n%len(colours)])
		}
	}
}

// number is a value with the digits that matter, and no exponent.
func number(v float64) string {
	if v >= 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// most is where the scale of y ends: at 1, 2 or 5 times a power of ten.
func (c Chart) most() float64 {
	most := 0.0
	for _, s := range c.Series {
		for _, v := range s.Values {
			if v > most { // false for NaN
				most = v
			}
		}
	}
	if most <= 0 {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(most)))
	for _, f := range []float64{1, 1.2, 1.5, 2, 3, 5} {
		if most <= f*unit {
			return f * unit
		}
	}
	return 10 * unit
}

// Table is the chart as a table in Markdown.
func (c Chart) Table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "**%s** (%s)\n\n| %s |", c.Title, c.Y, c.X)
	for _, at := range c.At {
		fmt.Fprintf(&b, " %s |", at)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(c.At)) + "\n")
	for _, s := range c.Series {
		fmt.Fprintf(&b, "| %s |", s.Name)
		for _, v := range s.Values {
			if math.IsNaN(v) {
				b.WriteString(" - |")
			} else {
				b.WriteString(" " + number(v) + " |")
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}
