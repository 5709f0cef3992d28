"""Source trees and the reproducible archives made of them."""
