package succession

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestVote: the majority of the last successors wins, of equals the latest; who may not come is passed over.
func TestVote(t *testing.T) {
	var h History[string]
	if _, ok := h.Next("a", nil); ok {
		t.Error("an empty history knows a successor")
	}
	for _, next := range []string{"b", "c", "b", "d"} {
		h.Add("a", next)
	}
	for _, test := range []struct {
		name string
		may  func(string) bool
		want string
	}{
		{"majority", nil, "b"},
		{"the latest of equals", func(s string) bool { return s != "b" }, "d"},
		{"nobody", func(string) bool { return false }, ""},
	} {
		if got, ok := h.Next("a", test.may); got != test.want || ok != (test.want != "") {
			t.Errorf("%s: %q, %v; not %q", test.name, got, ok, test.want)
		}
	}
	h.Forget("b")
	if got, _ := h.Next("a", nil); got != "d" {
		t.Errorf("after b is gone: %q", got)
	}
	for range Depth {
		h.Add("a", "e")
	}
	if got, _ := h.Next("a", func(s string) bool { return s != "e" }); got != "" {
		t.Errorf("what is older than the last %d successors still counts: %q", Depth, got)
	}
}

// TestDepth: one visit in between misleads the last successor twice, and the vote once.
func TestDepth(t *testing.T) {
	misses := func(depth int) (n int) {
		h := History[int]{Depth: depth}
		for turn := range 100 {
			next := 1
			if turn%10 == 9 {
				next = 2
			}
			if guess, ok := h.Next(0, nil); ok && guess != next {
				n++
			}
			h.Add(0, next)
		}
		return n
	}
	if last, vote := misses(1), misses(8); last != 19 || vote != 10 {
		t.Errorf("the last successor is wrong %d times, the vote %d", last, vote)
	}
}

// pass is Forced without the way from the last to the first.
func pass(order []int, fits func(a, b int) bool) int {
	n := Forced(order, fits)
	if len(order) > 1 && !fits(order[len(order)-1], order[0]) {
		n--
	}
	return n
}

// everySlots calls a function with each way to give 2 to 5 slots 1 to 6 tenants each.
func everySlots(use func(slots []int, most int)) (configurations int) {
	for count := 2; count <= 5; count++ {
		sizes := make([]int, count)
		var fill func(i int)
		fill = func(i int) {
			if i == count {
				var slots []int
				for s, n := range sizes {
					for range n {
						slots = append(slots, s)
					}
				}
				use(slots, slices.Max(sizes))
				configurations++
				return
			}
			for sizes[i] = 1; sizes[i] <= 6; sizes[i]++ {
				fill(i + 1)
			}
		}
		fill(0)
	}
	return configurations
}

// TestAlternate: in each of the configurations the order has everybody once and both of the least numbers of forced
// neighbours.
func TestAlternate(t *testing.T) {
	n := everySlots(func(slots []int, most int) {
		order := Alternate(slots)
		checkOrder(t, order, len(slots))
		fits := func(a, b int) bool { return slots[a] != slots[b] }
		if got, want := pass(order, fits), LeastForced(len(slots), most); got != want {
			t.Errorf("%v: %v has %d forced neighbours in a pass, the least is %d", slots, order, got, want)
		}
		if got, want := Forced(order, fits), LeastForcedCycle(len(slots), most); got != want {
			t.Errorf("%v: %v has %d forced neighbours in the cycle, the least is %d", slots, order, got, want)
		}
	})
	if n != 9324 {
		t.Errorf("%d configurations", n)
	}
}

// TestAlternateSmall: none, one, one slot; slots that are not numbered from 0.
func TestAlternateSmall(t *testing.T) {
	for _, test := range []struct{ slots, want []int }{
		{nil, nil},
		{[]int{7}, []int{0}},
		{[]int{2, 2, 2}, []int{0, 1, 2}},
		{[]int{-1, -1, 5}, []int{0, 2, 1}},
		{[]int{0, 0, 1, 2}, []int{0, 2, 1, 3}}, // A B A C, not A B C A
	} {
		if got := Alternate(test.slots); !slices.Equal(got, test.want) {
			t.Errorf("%v: %v, not %v", test.slots, got, test.want)
		}
	}
}

// TestArrangeSlots: the general order is as good as the special one.
func TestArrangeSlots(t *testing.T) {
	everySlots(func(slots []int, most int) {
		if len(slots) > 12 {
			return // the others are the same again
		}
		fits := func(a, b int) bool { return slots[a] != slots[b] }
		order := Arrange(len(slots), func(a, b int) int { return unfit(fits(a, b)) })
		checkOrder(t, order, len(slots))
		if got, want := Forced(order, fits), LeastForcedCycle(len(slots), most); got != want {
			t.Errorf("%v: %v has %d forced neighbours in the cycle, the least is %d", slots, order, got, want)
		}
	})
}

// TestArrangeSizes: among tenants of any size, the order is close to the best of all orders, and never worse than the
// one they came in.
func TestArrangeSizes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	worse := 0
	const rounds = 300
	for range rounds {
		n := 2 + random.IntN(6)
		sizes := make([]int, n)
		for i := range sizes {
			sizes[i] = random.IntN(100)
		}
		cost := func(a, b int) int { return max(0, sizes[a]+sizes[b]-100) }
		order := Arrange(n, cost)
		checkOrder(t, order, n)
		if best := cheapest(n, cost); around(order, cost) > best {
			worse++
		}
	}
	if worse > rounds/50 {
		t.Errorf("%d of %d orders are not the best", worse, rounds)
	}
}

func TestArrangeSmall(t *testing.T) {
	for n := range 4 {
		checkOrder(t, Arrange(n, func(a, b int) int { return a + b }), n)
	}
}

func BenchmarkArrange(b *testing.B) {
	random := rand.New(rand.NewPCG(1, 2))
	sizes := make([]int, 200)
	for i := range sizes {
		sizes[i] = random.IntN(100)
	}
	for b.Loop() {
		Arrange(len(sizes), func(a, b int) int { return max(0, sizes[a]+sizes[b]-100) })
	}
}

func unfit(fits bool) int {
	if fits {
		return 0
	}
	return 1
}

func checkOrder(t *testing.T, order []int, n int) {
	t.Helper()
	sorted := slices.Sorted(slices.Values(order))
	for i := range sorted {
		if sorted[i] != i {
			t.Fatalf("%v is not an order of %d", order, n)
		}
	}
	if len(order) != n {
		t.Fatalf("%v is not an order of %d", order, n)
	}
}

// around is what a cycle costs.
func around(order []int, cost func(a, b int) int) (sum int) {
	for i, a := range order {
		sum += cost(a, order[(i+1)%len(order)])
	}
	return sum
}

// cheapest is what the best of all cycles costs.
func cheapest(n int, cost func(a, b int) int) int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	best := around(order, cost)
	var permute func(i int)
	permute = func(i int) {
		best = min(best, around(order, cost))
		for j := i; j < n; j++ {
			order[i], order[j] = order[j], order[i]
			permute(i + 1)
			order[i], order[j] = order[j], order[i]
		}
	}
	permute(1)
	return best
}
