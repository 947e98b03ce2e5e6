package nft

import (
	"fmt"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// Rule is what is done with a packet, statement by statement; it ends where one
// does not hold.
type Rule []Statement

// Statement is one step of a rule. It is a value from which both its text and
// what the kernel gets are made.
type Statement interface {
	// String is the statement as nft lists it.
	String() string
	// compile is the statement as the kernel runs it.
	compile(*compiler) []expr.Any
}

// String is the rule as nft lists it. Two rules with the same text are the same.
func (r Rule) String() string {
	texts := make([]string, len(r))
	for i, s := range r {
		texts[i] = s.String()
	}
	return strings.Join(texts, " ")
}

// compiler makes rules' expressions for one table, and the sets without a name
// that they need.
type compiler struct {
	conn  *nftables.Conn
	table *nftables.Table
	err   error // the first failure
}

func (c *compiler) rule(chain string, r Rule) {
	var exprs []expr.Any
	for _, s := range r {
		exprs = append(exprs, s.compile(c)...)
	}
	c.conn.AddRule(&nftables.Rule{Table: c.table, Chain: &nftables.Chain{Table: c.table, Name: chain}, Exprs: exprs})
}

// anonymous adds a map that only one rule uses.
func (c *compiler) anonymous(key, data Type, elems []nftables.SetElement) *nftables.Set {
	set := &nftables.Set{
		Table: c.table, ID: setID(), Name: "__map%d", Anonymous: true, Constant: true,
		IsMap: true, KeyType: key, DataType: data,
	}
	parts := messages(elems)
	if len(parts) == 1 {
		c.check(c.conn.AddSet(set, elems))
		return set
	}
	c.check(c.conn.AddSet(set, nil))
	unbound := *set // as long as no rule has it, it takes elements
	unbound.Anonymous = false
	for _, part := range parts {
		c.check(c.conn.SetAddElements(&unbound, part))
	}
	return set
}

func (c *compiler) check(err error) {
	if err != nil && c.err == nil {
		c.err = fmt.Errorf("map of a rule: %w", err)
	}
}
