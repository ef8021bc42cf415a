"""Labels in: what people, tools and data sets say that recordings show."""
