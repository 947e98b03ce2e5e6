// Package joinapi is what a coordinator and a machine that joins say to each other
// beside the API: the paths, what is answered there, and the words in a token's
// Secret. It is all that `shoal join` knows of the coordinator.
//
//	GET CAPath       by anybody          the CA's certificate: public, and believed only by its hash
//	GET ClusterPath  by a join token     Cluster: whether the machine can join, and what time it is
//	GET NodePath     by a node           Node: what its configuration needs, the gossip's keys among it
//
// Keys are given to nodes only: a token by itself opens nothing but the request for
// a certificate.
package joinapi

import (
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Paths, on every coordinator's API port.
const (
	CAPath      = "/shoal/join/ca"
	ClusterPath = "/shoal/join/cluster"
	NodePath    = "/shoal/join/node"
)

// NameParameter of ClusterPath is the name that the machine wants as a Node.
const NameParameter = "name"

// Of a join token's Secret in kube-system.
const (
	// NodesGroup is the group of tokens that nodes join with, CoordinatorsGroup and
	// WitnessesGroup those of coordinators and of witnesses, which are not told what
	// nodes are.
	NodesGroup        = "system:bootstrappers:shoal:nodes"
	CoordinatorsGroup = "system:bootstrappers:shoal:coordinators"
	WitnessesGroup    = "system:bootstrappers:shoal:witnesses"
	// UsesKey is how many machines may still join with the token; none: any number.
	UsesKey = "shoal-uses"
	// CountedKey has the UIDs of the requests that were counted, by commas.
	CountedKey = "shoal-counted"
	// ReplaceKey names the Node whose name a machine may take though it lives.
	ReplaceKey = "shoal-replace"
)

// Reasons of the conditions of requests that are denied.
const (
	ReasonNameTaken   = "NameTaken"
	ReasonNameInvalid = "NameInvalid"
	ReasonTokenUsedUp = "TokenUsedUp"
)

// Cluster is what a machine learns before it asks for a certificate.
type Cluster struct {
	Time time.Time `json:"time"`
	// Refused says why the machine cannot join, as a Reason; empty: it can.
	Refused string `json:"refused,omitempty"`
	Message string `json:"message,omitempty"`
}

// Node is what a node's configuration needs.
type Node struct {
	// Servers are host:port of the API of the coordinators that live.
	Servers       []string `json:"servers"`
	ClusterCIDR   string   `json:"clusterCIDR"`
	ServiceCIDR   string   `json:"serviceCIDR"`
	ClusterDNS    []string `json:"clusterDNS,omitempty"`
	ClusterDomain string   `json:"clusterDomain"`
	// GossipKeys is the key file, and Gossip where members are reached.
	GossipKeys []byte   `json:"gossipKeys,omitempty"`
	Gossip     []string `json:"gossip,omitempty"`
}

// Attempt is one machine's wish to join under a name.
type Attempt struct {
	Name string
	// Alive tells whether the Node of that name is Ready, and Replace which Node's name
	// the token gives away nevertheless.
	Alive   bool
	Replace string
	// Uses is the Secret's UsesKey, empty for any number. Counted holds for a request
	// that it was counted down for before.
	Uses    string
	Counted bool
}

// Refusal tells why an attempt must fail, as a Reason and a sentence with the remedy;
// empty when it may go on.
func (a Attempt) Refusal() (reason, message string) {
	switch {
	case a.Counted:
		return "", ""
	case a.Uses != "" && !positive(a.Uses):
		return ReasonTokenUsedUp,
			"the token has been used by as many machines as it is for: make another with `shoal token create`"
	case len(validation.IsDNS1123Subdomain(a.Name)) > 0:
		return ReasonNameInvalid, "no Node can have that name: use a-z, 0-9, - and ., with --node-name"
	case a.Alive && a.Replace != a.Name:
		return ReasonNameTaken, "a live Node has the name " + a.Name + ": choose another with --node-name; if this machine " +
			"is to take its place, make a token for that with `shoal token create --replace " + a.Name + "`"
	}
	return "", ""
}

func positive(text string) bool {
	n, err := strconv.Atoi(text)
	return err == nil && n > 0
}
