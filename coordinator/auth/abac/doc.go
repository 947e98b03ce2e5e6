// Package abac authorizes by attributes: a file of policies, one a line (ACC-9).
package abac
