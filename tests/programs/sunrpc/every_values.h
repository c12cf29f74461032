// The same values and the same text of them, whether rpcgen or clan-rpcgen has made the types.
#pragma once

#include <cstdio>
#include <cstring>
#include <string>

/// Every type, filled. What it points to lives as long as the program.
inline everything sample(int first) {
  everything e{};
  // xdr_long of libtirpc loses the sign
  e.one = {first, 2, -3, 4, 5.5F, -6.25, TRUE, BLUE, -7, 8, 'x', 200, 9, 10};
  static scalars few[3];
  for (scalars& s : few) s = e.one;
  few[1].h = RED;
  e.few.few_len = 3;
  e.few.few_val = few;
  e.fixed[0] = 1, e.fixed[1] = -2, e.fixed[2] = 3;
  std::memcpy(e.bits, "\0\1\2\3\4", 5);
  static char bytes[77];
  for (unsigned i = 0; i < sizeof bytes; ++i) bytes[i] = static_cast<char>(i * 31);
  e.bytes.blob_len = sizeof bytes;
  e.bytes.blob_val = bytes;
  e.text = const_cast<char*>("plain text");
  static shape shapes[4];
  shapes[0].kind = RED;
  shapes[0].shape_u.side = 12;
  shapes[1].kind = GREEN;
  shapes[1].shape_u.name = const_cast<char*>("green");
  shapes[2].kind = BLUE;
  shapes[3].kind = static_cast<colour>(99);
  std::memcpy(shapes[3].shape_u.raw, "rawraw", 6);
  e.shapes.shapes_len = 4;
  e.shapes.shapes_val = shapes;
  static words labels[2] = {const_cast<char*>("a"), const_cast<char*>("")};
  static node second, head;
  second.value = 7;
  head.value = 6;
  head.next = &second;
  head.label.label_len = 2;
  head.label.label_val = labels;
  e.list = &head;
  static bool_t yes = TRUE;
  e.maybe = &yes;
  static u_quad_t many[] = {0, 1, ~u_quad_t{0}};
  e.many.many_len = 3;
  e.many.many_val = many;
  return e;
}

inline void print_scalars(std::string* out, const scalars& s) {
  char text[512];
  std::snprintf(text, sizeof text, "%d %u %lld %llu %g %g %d %d %d %u %d %u %ld %lu\n", s.a, s.b,
                static_cast<long long>(s.c), static_cast<unsigned long long>(s.d),
                static_cast<double>(s.e), s.f, s.g, s.h, s.i, s.j, s.k, s.l, s.m, s.n);
  *out += text;
}

inline void print_bytes(std::string* out, const char* bytes, unsigned length) {
  char text[8];
  for (unsigned i = 0; i < length; ++i) {
    std::snprintf(text, sizeof text, "%02x", static_cast<unsigned char>(bytes[i]));
    *out += text;
  }
  *out += "\n";
}

inline std::string text_of(const everything& e) {
  std::string out;
  print_scalars(&out, e.one);
  for (u_int i = 0; i < e.few.few_len; ++i) print_scalars(&out, e.few.few_val[i]);
  for (const int n : e.fixed) out += std::to_string(n) + " ";
  print_bytes(&out, e.bits, sizeof e.bits);
  print_bytes(&out, e.bytes.blob_val, e.bytes.blob_len);
  out += std::string(e.text) + "\n";
  for (u_int i = 0; i < e.shapes.shapes_len; ++i) {
    const shape& s = e.shapes.shapes_val[i];
    int kind;  // C++ does not let an enumeration have a value without a name
    std::memcpy(&kind, &s.kind, sizeof kind);
    out += std::to_string(kind) + ": ";
    if (kind == RED)
      out += std::to_string(s.shape_u.side) + "\n";
    else if (kind == GREEN)
      out += std::string(s.shape_u.name) + "\n";
    else if (kind == BLUE)
      out += "nothing\n";
    else
      print_bytes(&out, s.shape_u.raw, sizeof s.shape_u.raw);
  }
  for (const node* n = e.list; n != nullptr; n = n->next) {
    out += std::to_string(n->value);
    for (u_int i = 0; i < n->label.label_len; ++i)
      out += " [" + std::string(n->label.label_val[i]) + "]";
    out += "\n";
  }
  out += e.maybe == nullptr ? "none\n" : *e.maybe ? "yes\n" : "no\n";
  for (u_int i = 0; i < e.many.many_len; ++i) out += std::to_string(e.many.many_val[i]) + " ";
  return out + "\n";
}
